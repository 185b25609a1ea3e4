{{/* The files of heddle-topo-worker, in a pod of its own and in heddle-node's. */}}

{{- define "heddle.topoWorker.mounts" -}}
{{- with .Values.topoDiscovery.worker }}
{{- $secret := include "heddle.clusterManagerSecret" $ }}
{{- if .staticConfigMap }}
- name: static
  mountPath: /etc/heddle-topology
  readOnly: true
{{- end }}
{{- if $secret }}
- name: cluster-manager
  mountPath: /etc/heddle-cluster-manager
  readOnly: true
{{- end }}
{{- if .mKeySecret }}
- name: m-keys
  mountPath: /etc/heddle-m-keys
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "heddle.topoWorker.secrets" -}}
{{- with .Values.topoDiscovery.worker }}
{{- $secret := include "heddle.clusterManagerSecret" $ }}
{{- if $secret }}
- --cluster-manager-secret=/etc/heddle-cluster-manager
{{- end }}
{{- if .mKeySecret }}
- --m-key-secret=/etc/heddle-m-keys
{{- end }}
{{- end }}
{{- end }}

{{- define "heddle.topoWorker.volumes" -}}
{{- with .Values.topoDiscovery.worker }}
{{- $secret := include "heddle.clusterManagerSecret" $ }}
{{- with .staticConfigMap }}
- name: static
  configMap:
    name: {{ . }}
{{- end }}
{{- with $secret }}
- name: cluster-manager
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}
{{- with .mKeySecret }}
- name: m-keys
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}
{{- end }}
{{- end }}
