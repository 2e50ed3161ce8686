// Draws one dashboard from the answers of a Prometheus, with Grafana's own components.
// The bundler gives Grafana's ES modules whole CommonJS modules where they expect a default export; these are consistent.
import type { DataFrame, Field, FieldConfig } from '@grafana/data';
import type { UPlotConfigBuilder } from '@grafana/ui';
import type { FC, ReactNode } from 'react';
import 'uplot/dist/uPlot.min.css';

declare const require: (name: string) => any;
const React = require('react');
const { createRoot } = require('react-dom/client');
const {
  createTheme,
  dateTime,
  FieldColorModeId,
  FieldType,
  formattedValueToString,
  getDisplayProcessor,
  standardTransformers,
  standardTransformersRegistry,
  ThemeContext,
  transformDataFrame,
  VizOrientation,
} = require('@grafana/data');
const { BarGauge, BigValue, GlobalStyles, PanelChrome, PortalContainer, Table, TimeSeries } = require('@grafana/ui');

type Point = [number, number | null];
interface Series { name: string; labels: Record<string, string>; points: Point[]; }
interface Answer { refId: string; series: Series[]; }
interface Mark { name: string; color: string; times: number[]; }
interface Drawn { panel: any; answers: Answer[]; }
interface Page { title: string; chosen: string; begin: number; end: number; zone: string; panels: Drawn[]; marks: Mark[]; }

const page: Page = (window as any).PAGE;
const theme = createTheme({ colors: { mode: 'dark' } });
const COLUMN = 58;
const ROW = 38;
// In pixels: of the words at a tick of the axis of time, of which half is beyond the last tick.
const TIME_WIDTH = 56;

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer,
   standardTransformers.orderFieldsTransformer, standardTransformers.filterFieldsTransformer,
   standardTransformers.filterFieldsByNameTransformer, standardTransformers.renameFieldsTransformer,
  ].map((transformation: any) => ({ id: transformation.id, name: transformation.name, transformation: () => Promise.resolve(transformation) } as any))
);

// What Grafana does with a panel's field options before it draws: the defaults, and what is overridden by name.
function configured(panel: any, field: Field, name: string, index: number): Field {
  const { defaults, overrides } = panel.fieldConfig;
  const config: FieldConfig = {
    color: { mode: panel.type === 'timeseries' ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds },
    ...defaults,
    custom: { ...(defaults.custom ?? {}) },
    displayName: name,
  };
  for (const override of overrides ?? []) {
    if (override.matcher.id === 'byName' && override.matcher.options === name) {
      for (const { id, value } of override.properties) {
        if (id.startsWith('custom.')) {
          config.custom[id.slice('custom.'.length)] = value;
        } else {
          (config as any)[id] = value;
        }
      }
    }
  }
  if (config.thresholds) {
    const steps = config.thresholds.steps.map((step: any) => ({ ...step, value: step.value ?? -Infinity }));
    config.thresholds = { ...config.thresholds, steps };
  }
  const done: Field = { ...field, config, state: { seriesIndex: index, displayName: name } };
  done.display = getDisplayProcessor({ field: done, theme, timeZone: page.zone });
  return done;
}

function frameOf(panel: any, series: Series, index: number): DataFrame {
  const time: Field = { name: 'Time', type: FieldType.time, config: {}, values: series.points.map(([at]) => at) };
  const value: Field = { name: 'Value', type: FieldType.number, config: {}, values: series.points.map(([, v]) => v), labels: series.labels };
  return { name: series.name, length: series.points.length, fields: [time, configured(panel, value, series.name, index)] };
}

function allSeries(drawn: Drawn): Series[] {
  return drawn.answers.flatMap((answer) => answer.series);
}

function Words({ children }: { children: ReactNode }) {
  return <div style={{ display: 'flex', height: '100%', alignItems: 'center', justifyContent: 'center', textAlign: 'center', color: theme.colors.text.secondary }}>{children}</div>;
}

function Marks({ builder }: { builder: UPlotConfigBuilder }) {
  React.useLayoutEffect(() => {
    builder.setPadding([null, TIME_WIDTH / 2, null, null] as any);
    builder.addHook('draw', (u: any) => {
      for (const mark of page.marks) {
        for (const at of mark.times) {
          const x = u.valToPos(at, 'x', true);
          u.ctx.save();
          u.ctx.strokeStyle = theme.visualization.getColorByName(mark.color);
          u.ctx.setLineDash([4, 4]);
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.restore();
        }
      }
    });
  }, [builder]);
  return null;
}

function Curves({ drawn, width, height }: { drawn: Drawn; width: number; height: number }) {
  const series = allSeries(drawn);
  if (!series.length) {
    return <Words>{drawn.panel.fieldConfig.defaults.noValue}</Words>;
  }
  const frames = series.map((one, index) => frameOf(drawn.panel, one, index));
  const range = { from: dateTime(page.begin), to: dateTime(page.end), raw: { from: dateTime(page.begin), to: dateTime(page.end) } };
  return (
    <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone={page.zone} legend={drawn.panel.options.legend}>
      {(builder: UPlotConfigBuilder) => <Marks builder={builder} />}
    </TimeSeries>
  );
}

function Numbers({ drawn, width, height }: { drawn: Drawn; width: number; height: number }) {
  const { panel } = drawn;
  const series = allSeries(drawn);
  if (!series.length) {
    return <Words><span style={{ fontSize: 18 }}>{panel.fieldConfig.defaults.noValue}</span></Words>;
  }
  const { field, value } = valueOf(panel, series[0], 0);
  if (panel.options.textMode === 'name') {
    const color = theme.visualization.getColorByName((field.config.color as any)?.fixedColor ?? 'text');
    return <BigValue theme={theme} width={width} height={height} value={{ text: series[0].name, numeric: NaN, color } as any} colorMode={panel.options.colorMode} graphMode={'none' as any} justifyMode={'auto' as any} />;
  }
  return <BigValue theme={theme} width={width} height={height} value={value} colorMode={panel.options.colorMode} graphMode={'none' as any} justifyMode={'auto' as any} textMode={'value' as any} />;
}

function valueOf(panel: any, series: Series, index: number) {
  const field = configured(panel, { name: 'Value', type: FieldType.number, config: {}, values: [] }, series.name, index);
  const last = series.points[series.points.length - 1][1];
  return { field, value: { ...field.display!(last ?? NaN), title: series.name } };
}

function Bars({ drawn, width, height }: { drawn: Drawn; width: number; height: number }) {
  const { panel } = drawn;
  const series = allSeries(drawn);
  if (!series.length) {
    return <Words>{panel.fieldConfig.defaults.noValue}</Words>;
  }
  const most = panel.fieldConfig.defaults.max ?? Math.max(...series.map((one) => one.points[one.points.length - 1][1] ?? 0));
  const each = Math.min(40, height / series.length);
  const texts = series.map((one, index) => valueOf(panel, one, index).value);
  const longest = texts.reduce((a, b) => (formattedValueToString(b).length > formattedValueToString(a).length ? b : a));
  const title = texts.reduce((a, b) => ((b.title ?? '').length > (a.title ?? '').length ? b : a)).title!;
  return (
    <div>
      {series.map((one, index) => {
        const { field, value } = valueOf({ ...panel, fieldConfig: { ...panel.fieldConfig, defaults: { ...panel.fieldConfig.defaults, max: most } } }, one, index);
        return (
          <div key={one.name} style={{ height: each }}>
            <BarGauge theme={theme} width={width} height={each - 6} field={field.config} display={field.display} value={value} orientation={VizOrientation.Horizontal}
              displayMode={panel.options.displayMode} namePlacement={panel.options.namePlacement} alignmentFactors={{ ...longest, title } as any} itemSpacing={4} />
          </div>
        );
      })}
    </div>
  );
}

function useRows(drawn: Drawn): DataFrame | undefined {
  const [rows, setRows] = React.useState();
  React.useEffect(() => {
    const frames = drawn.answers.map(({ refId, series }) => {
      const labels = [...new Set(series.flatMap((one) => Object.keys(one.labels)))].sort();
      const value = drawn.answers.length > 1 ? `Value #${refId}` : 'Value';
      const fields: Field[] = [
        { name: 'Time', type: FieldType.time, config: {}, values: series.map((one) => one.points[0][0]) },
        ...labels.map((label) => ({ name: label, type: FieldType.string, config: {}, values: series.map((one) => one.labels[label] ?? '') })),
        { name: value, type: FieldType.number, config: {}, values: series.map((one) => one.points[0][1]) },
      ];
      return { refId, length: series.length, fields };
    }).filter((frame) => frame.length > 0);
    transformDataFrame(drawn.panel.transformations, frames, { interpolate: (text: string) => text }).subscribe((done: DataFrame[]) => {
      const [frame] = done;
      if (!frame) {
        return;
      }
      const fields = frame.fields.map((field, index) => {
        const ready = configured(drawn.panel, field, field.config.displayName ?? field.name, index);
        ready.config = { ...ready.config, color: { mode: FieldColorModeId.Thresholds }, custom: { align: 'auto', ...ready.config.custom } };
        if (!ready.config.thresholds) {
          ready.config.thresholds = { mode: 'absolute' as any, steps: [{ value: -Infinity, color: 'text' }] };
        }
        if (ready.type === FieldType.string) {
          ready.config.unit = undefined;
        }
        ready.display = getDisplayProcessor({ field: ready, theme, timeZone: page.zone });
        return ready;
      });
      setRows({ ...frame, fields });
    });
  }, [drawn]);
  return rows;
}

function Rows({ drawn, width, height }: { drawn: Drawn; width: number; height: number }) {
  const rows = useRows(drawn);
  if (!rows || !rows.length) {
    return <Words>{drawn.panel.fieldConfig.defaults.noValue}</Words>;
  }
  return <Table data={rows} width={width} height={height} initialSortBy={drawn.panel.options.sortBy} cellHeight={'sm' as any} />;
}

const KINDS: Record<string, FC<{ drawn: Drawn; width: number; height: number }>> = { timeseries: Curves, stat: Numbers, bargauge: Bars, table: Rows };

function One({ drawn }: { drawn: Drawn }) {
  const { panel } = drawn;
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute' as const, left: x * COLUMN, top: 56 + y * ROW, width: w * COLUMN - 8, height: h * ROW - 8 };
  if (panel.type === 'row') {
    return <div style={{ ...place, fontSize: 18, fontWeight: 500, paddingTop: 4 }}>{panel.title}</div>;
  }
  const Kind = KINDS[panel.type];
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={place.width} height={place.height}>
        {(width: number, height: number) => <Kind drawn={drawn} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Whole() {
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PortalContainer />
      <div style={{ position: 'relative', background: theme.colors.background.canvas, minHeight: '100vh', padding: 12 }}>
        <div style={{ height: 40, fontSize: 20, fontWeight: 500 }}>
          {page.title} <span style={{ fontSize: 14, color: theme.colors.text.secondary }}>{page.chosen}</span>
          {page.marks.map((mark) => (
            <span key={mark.name} style={{ fontSize: 14, marginLeft: 24, color: theme.visualization.getColorByName(mark.color) }}>¦ {mark.name}</span>
          ))}
        </div>
        <div style={{ position: 'absolute', left: 12, top: 0, right: 0 }}>
          {page.panels.map((drawn) => <One key={drawn.panel.id} drawn={drawn} />)}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('root')!).render(<Whole />);
