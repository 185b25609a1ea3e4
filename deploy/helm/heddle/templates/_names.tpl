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

{{/* Registry and project of the images, which MetaX's documents call registry. */}}
{{- define "heddle.repository" -}}
{{ .Values.image.repository | default .Values.registry }}
{{- end }}

{{/* The image of a binary: dict "root" $ "name" <binary>. */}}
{{- define "heddle.image" -}}
{{- $tag := .root.Values.image.tag | default .root.Chart.AppVersion -}}
{{- with include "heddle.repository" .root }}{{ trimSuffix "/" . }}/{{ end }}{{ .name }}:{{ $tag }}
{{- end }}

{{/* Where daemons on the host's network listen, before the colon of the port. */}}
{{- define "heddle.bindAddress" -}}
{{- with .Values.bindAddress }}{{ if contains ":" . }}[{{ . }}]{{ else }}{{ . }}{{ end }}{{ end }}
{{- end }}

{{/* What the kubelet asks of such a daemon: dict "root" $ "path" <path> "port" <port>. */}}
{{- define "heddle.probe" -}}
{{- $host := "" }}{{ with .root.Values.bindAddress }}{{ $host = printf "host: %q, " . }}{{ end -}}
{ {{- $host }}path: {{ .path }}, port: {{ .port }}}
{{- end }}

{{/* Whether daemons reach the driver by the host's root, for which they are privileged: "true" or "". */}}
{{- define "heddle.hostDriver" -}}
{{- if ne .Values.driver.access "runtime" }}true{{ end }}
{{- end }}

{{- define "heddle.privileged" -}}
# The device cgroup keeps /dev/nvidia* closed to an unprivileged container
# unless the container runtime opens it.
privileged: true
runAsUser: 0
readOnlyRootFilesystem: true
{{- end }}

{{- define "heddle.hostMount" -}}
- name: host
  mountPath: /host
  readOnly: true
  # A driver container mounts its root after us.
  mountPropagation: HostToContainer
{{- end }}

{{- define "heddle.hostVolume" -}}
- name: host
  hostPath:
    path: /
    type: Directory
{{- end }}

{{- define "heddle.hostArgs" -}}
- --host-root=/host
{{- with .Values.driver.root }}
- --driver-root={{ . }}
{{- end }}
{{- end }}

{{- define "heddle.configMapName" -}}
{{ .Values.config.existingConfigMap | default "heddle-device-config" }}
{{- end }}

{{/* The volume with the configuration. The keys of a ConfigMap under MetaX's name, where there
     is one, replace the chart's: of two sources with one key the kubelet takes the last. */}}
{{- define "heddle.configVolume" -}}
- name: config
  projected:
    sources:
    - configMap:
        name: {{ include "heddle.configMapName" . }}
    {{- if not .Values.config.existingConfigMap }}
    - configMap:
        name: metax-device-config
        optional: true
    {{- end }}
{{- end }}

{{/* Whether the parts run: "true" or "". Two of them MetaX's documents enable by deploy. */}}
{{- define "heddle.topology" -}}
{{- with .Values.topoDiscovery }}{{ if or .enabled .deploy }}true{{ end }}{{ end }}
{{- end }}

{{- define "heddle.scheduler" -}}
{{- with .Values.gpuScheduler }}{{ if or .enabled .deploy }}true{{ end }}{{ end }}
{{- end }}

{{- define "heddle.devicePlugin" -}}
{{- if or .Values.gpuDevice.enabled .Values.gpuDevice.sGPUHybridMode }}true{{ end }}
{{- end }}

{{/* The service account of a daemon as the API server names it: dict "root" $ "name" <daemon>. */}}
{{- define "heddle.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* The image with the library of enforcer preload, empty for none, and where an init
     container puts the library on the node. It is in the state directory, which an
     uninstall clears. */}}
{{- define "heddle.preloadImage" -}}
{{ if include "heddle.devicePlugin" . }}{{ .Values.gpuDevice.preload.image }}{{ end }}
{{- end }}

{{- define "heddle.preloadLibrary" -}}
/var/lib/heddle/device-plugin/library/libvgpu.so
{{- end }}

{{/* The cluster's NodeConfig, merged with other values that set parts of it. */}}
{{- define "heddle.clusterConfig" -}}
{{- $config := deepCopy .Values.config.cluster }}
{{- if .Values.gpuDevice.sGPUHybridMode }}{{ $_ := set $config "mode" "sgpu" }}{{ end }}
{{- $topology := $config.topology | default dict }}
{{- with .Values.topoDiscovery }}
{{- if include "heddle.topology" $ }}
{{- with .mode }}
{{- $_ := set $topology "mode" . }}
{{- end }}
{{- with .switchbox.clusterManagerAddress }}
{{- $_ := set $topology "clusterManager" . }}
{{- end }}
{{- end }}
{{- end }}
{{- if $topology }}
{{- $_ := set $config "topology" $topology }}
{{- end }}
{{- if include "heddle.preloadImage" . }}
{{- $sgpu := $config.sgpu | default dict }}
{{- $enforce := $sgpu.enforce | default dict }}
{{- $library := $enforce.preloadLibrary | default (include "heddle.preloadLibrary" .) }}
{{- $_ := set $config "sgpu" (set $sgpu "enforce" (set $enforce "preloadLibrary" $library)) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* The Secret with user and password of the cluster manager, empty for none. */}}
{{- define "heddle.clusterManagerSecret" -}}
{{- with .Values.topoDiscovery.switchbox }}
{{- if .existingSecret }}{{ .existingSecret }}{{ else if or .clusterManagerUser .clusterManagerPassword .clusterManagerCA }}heddle-cluster-manager{{ end }}
{{- end }}
{{- end }}

{{/* Of what exists only while an uninstall runs. */}}
{{- define "heddle.uninstallMeta" -}}
labels:
  {{- include "heddle.labels" (dict "root" . "name" "heddle-uninstall") | nindent 2 }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: "0"
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Where the steps for an alert stand: its name. */}}
{{- define "heddle.runbook" -}}
https://github.com/heddle-dev/heddle/blob/main/docs/reference/metrics.md#{{ lower . }}
{{- end }}

{{/* The security context of a pod that talks to the API server alone. */}}
{{- define "heddle.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The security context of a daemon that runs as root; of a list, with these capabilities. */}}
{{- define "heddle.root" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if kindIs "slice" . }}
  add: [{{ join ", " . }}]
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}
