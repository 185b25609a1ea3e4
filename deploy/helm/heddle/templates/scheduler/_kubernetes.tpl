{{/* Minor version of the API server, of those that heddle-scheduler has run against. */}}
{{- define "heddle.schedulerMinor" -}}
{{- $version := .Values.gpuScheduler.kubernetesVersion | default .Capabilities.KubeVersion.Version }}
{{- $minor := int (semver $version).Minor }}
{{- if not (has $minor (list 31 33 34 35 36 37)) }}
{{- $near := ternary "1.33" "1.37" (lt $minor 34) }}
{{- fail (printf "heddle-scheduler has not been run against Kubernetes 1.%d: gpuScheduler.kubernetesVersion=%s runs it with the flags for %s, at your own risk; see docs/get-started/install.md#kubernetes-versions (helm template: --kube-version)" $minor $near $near) }}
{{- end }}
{{- $minor }}
{{- end }}

{{/* Flags by which one kube-scheduler asks an older API server for nothing that it
     does not serve: it would wait for that for ever. */}}
{{- define "heddle.schedulerFlags" -}}
{{- $minor := int (include "heddle.schedulerMinor" .) }}
{{- $flags := list }}
{{- $gates := list }}
{{- if lt $minor 37 }}
{{- /* kube-scheduler emulates three minors back. */}}
{{- $flags = append $flags (printf "--emulated-version=1.%d" (max $minor 34)) }}
{{- end }}
{{- if lt $minor 34 }}
{{- /* resource.k8s.io/v1 is served since 1.34. Those gates that depend on the first go with it. */}}
{{- $gates = concat $gates (list "DynamicResourceAllocation=false" "DRASchedulerFilterTimeout=false" "DRAPrioritizedList=false" "DRAAdminAccess=false") }}
{{- end }}
{{- if .Values.gpuScheduler.genericWorkload }}
{{- if lt $minor 37 }}
{{- fail (printf "gpuScheduler.genericWorkload needs Kubernetes 1.37, and the API server is 1.%d" $minor) }}
{{- end }}
{{- $gates = concat $gates (list "GenericWorkload=true" "TopologyAwareWorkloadScheduling=true") }}
{{- end }}
{{- with $gates }}
{{- $flags = append $flags (printf "--feature-gates=%s" (join "," .)) }}
{{- end }}
{{- toJson $flags }}
{{- end }}
