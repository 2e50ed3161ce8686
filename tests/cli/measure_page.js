// What tests ask about each frame's page: what overflows, how large text is, what contrast it has, which tables scroll.
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, width = page.documentElement.clientWidth;
  const shown = (element) => element.getClientRects().length > 0;
  const style = (element) => view.getComputedStyle(element);
  const named = (element) => `${element.tagName} ${element.getAttribute("class") ?? ""} ${element.textContent.slice(0, 40)}`;
  const elements = [...page.body.querySelectorAll("*")].filter(shown);
  const texts = elements.filter((element) => [...element.childNodes].some((node) =>
    node.nodeType === 3 && node.data.trim()) && !["title", "TITLE"].includes(element.tagName));

  // The content of a table that scrolls is cut off by its frame.
  const overflowing = elements.filter((element) => !element.closest(".inner")).filter((element) => {
    const box = element.getBoundingClientRect();
    return box.right > width + 0.5 || box.left < -0.5;
  });

  const luminance = (color) => {
    const [red, green, blue] = color.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const label = element.closest(".marker");
    if (label) return style(label.querySelector("rect")).fill;
    for (let at = element; at; at = at.parentElement) {
      const color = style(at).backgroundColor;
      if (!/, 0\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (element) => {
    const front = luminance(element instanceof view.SVGElement ? style(element).fill : style(element).color);
    const back = luminance(behind(element));
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  };
  const contrasts = texts.map((element) => [contrast(element), named(element)]).sort((a, b) => a[0] - b[0]);

  const drawn = texts.filter((element) => element.closest("svg"));
  const size = (element) => parseFloat(style(element).fontSize) * Math.min(element.getScreenCTM().a, element.getScreenCTM().d);
  const overlapping = drawn.filter((element) => drawn.some((other) => {
    const [a, b] = [element, other].map((text) => text.getBoundingClientRect());
    return other !== element && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }));

  const isVisible = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 100 && box.height > 15;
  };
  const tables = [...page.querySelectorAll(".scroll")].map((frame) => ({
    scrolls: frame.scrollWidth > frame.clientWidth,
    says: isVisible(frame.querySelector(".hint")),
  }));
  return {
    width, scrollWidth: page.documentElement.scrollWidth, overflowing: overflowing.map(named),
    background: style(page.body).backgroundColor, contrast: contrasts[0], tables,
    sizes: drawn.map((element) => [size(element), named(element)]), overlapping: overlapping.map(named),
    text: page.body.innerText,
  };
}
addEventListener("load", () => {
  document.getElementById("found").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(measure));
});
