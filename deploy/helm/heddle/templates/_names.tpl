{{/* Object names are fixed: there is one heddle in a cluster, and people and
     scripts find its parts by name whatever the release is called. */}}

{{- define "heddle.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: heddle
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* The image of a binary: dict "root" $ "name" <binary>. */}}
{{- define "heddle.image" -}}
{{- $tag := .root.Values.tag | default .root.Chart.AppVersion -}}
{{- with .root.Values.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .name }}:{{ $tag }}
{{- end }}

{{- define "heddle.configMapName" -}}
{{ .Values.config.existingConfigMap | default "heddle-device-config" }}
{{- end }}
