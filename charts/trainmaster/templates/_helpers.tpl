{{/* Helm allows releases to begin with a digit and to have dots, and Kubernetes allows neither in the name of a Service. */}}
{{- define "trainmaster.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $made := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full := default $made .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "the objects of this release would be called %s-operator, and Kubernetes refuses a Service of that name: it must begin with a letter, and may have only the letters a to z, digits and - after it. Set fullnameOverride, for example to trainmaster, or choose another name for the release" $full) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* Of the Deployment, Service, ServiceAccount, Role. */}}
{{- define "trainmaster.operator" -}}
{{- include "trainmaster.fullname" . }}-operator
{{- end -}}

{{/* Of what belongs to no namespace: releases that watch one namespace each may bear the same name. */}}
{{- define "trainmaster.clusterName" -}}
{{- include "trainmaster.operator" . }}{{ with .Values.watchNamespace }}-{{ $.Release.Namespace }}{{ end }}
{{- end -}}

{{- define "trainmaster.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trainmaster.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: serviceAccount.name must name the ServiceAccount that the operator shall use" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "trainmaster.priorityClass" -}}
{{- if .Values.priorityClass.create -}}
{{- default (include "trainmaster.clusterName" .) .Values.priorityClass.name -}}
{{- else -}}
{{- .Values.priorityClass.name -}}
{{- end -}}
{{- end -}}

{{- define "trainmaster.tlsSecret" -}}
{{- include "trainmaster.operator" . }}-tls
{{- end -}}

{{/* Of what `helm test` makes: its pod, its job and its ServiceAccount. */}}
{{- define "trainmaster.test" -}}
{{- printf "%s-test" (include "trainmaster.operator" .) | trunc 48 | trimSuffix "-" }}
{{- end -}}

{{- define "trainmaster.host" -}}
{{- include "trainmaster.operator" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Who may read metrics is granted cluster-wide, so its name is unique as the other cluster-wide names are. */}}
{{- define "trainmaster.metricsReader" -}}
{{- include "trainmaster.fullname" . }}-metrics-reader{{ with .Values.watchNamespace }}-{{ $.Release.Namespace }}{{ end }}
{{- end -}}

{{- define "trainmaster.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "trainmaster.labels" -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{- range $values := list "commonLabels" "podLabels" }}
{{- if hasKey (get $.Values $values | default dict) $key }}
{{- fail (printf "%s has %s, which the chart sets itself: Services and policies select by some of these labels. Leave it out" $values $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "trainmaster.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* As a map with further labels, which win. Takes (list root further). A key stands once: Flux and kustomize refuse others. */}}
{{- define "trainmaster.labelsWith" -}}
{{- mergeOverwrite (include "trainmaster.labels" (first .) | fromYaml) (last . | default dict) | toYaml -}}
{{- end -}}

{{/* Not the operator's component: Services and policies select by it. */}}
{{- define "trainmaster.testLabels" -}}
{{- include "trainmaster.labels" . | replace "app.kubernetes.io/component: operator" "app.kubernetes.io/component: test" -}}
{{- end -}}

{{/* repository, with @digest or :tag. Takes (list image defaultTag). */}}
{{- define "trainmaster.image" -}}
{{- $image := first . -}}
{{- with $image.digest -}}
{{ $image.repository }}@{{ . }}
{{- else -}}
{{ $image.repository }}:{{ default (last .) $image.tag }}
{{- end -}}
{{- end -}}

{{- define "trainmaster.operatorImage" -}}
{{- include "trainmaster.image" (list .Values.image .Chart.AppVersion) -}}
{{- end -}}

{{/* Takes (list root apiVersion sentence). Rendering without a cluster can't know what one has: only where there is
     one, which its aggregation API tells, is the absence of an API an error. */}}
{{- define "trainmaster.requireAPI" -}}
{{- $has := (index . 0).Capabilities.APIVersions -}}
{{- if and ($has.Has "apiregistration.k8s.io/v1") (not ($has.Has (index . 1))) -}}
{{- fail (index . 2) -}}
{{- end -}}
{{- end -}}
