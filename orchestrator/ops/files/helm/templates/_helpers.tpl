{{/* A number as PromQL and people write it: Go would print 1000000000 as 1e+09. */}}
{{- define "orchestrator.number" -}}
{{- if eq (float64 (int64 .)) (float64 .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* The metadata of an object, from a dict with name, labels, namespace and root. */}}
{{- define "orchestrator.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Values.namespace | default .root.Release.Namespace }}
labels:
  {{- $own := dict "app.kubernetes.io/name" "orchestrator" "app.kubernetes.io/component" "monitoring" }}
  {{- toYaml (merge $own (.labels | default dict) .root.Values.labels) | nindent 2 }}
{{- end -}}
