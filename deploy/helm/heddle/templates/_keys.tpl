{{/*
The keys that heddle-feature-discovery may write on its Node, as JSON lists. In
label patterns one "*" stands for what depends on the hardware. The lists repeat
api/wellknown (NodeLabels, NodeTaints, NodeAnnotations); test/chart compares them.
*/}}

{{/* The cluster's domains as they are configured, where the vendor may be auto. As in
     api/config a resource with a vendor's name selects the vendor. */}}
{{- define "heddle.clusterDomains" -}}
{{- $default := dict "vendor" "auto" "card" "gpu" "company" "heddle.dev" }}
{{- $names := .Values.config.cluster.resources | default dict }}
{{- range list "vmemoryPercentage" "vmemory" "vcore" "sgpu" "gpu" }}
{{- $vendor := get $names . | toString | splitList "/" | first }}
{{- if has $vendor (list "nvidia.com" "amd.com" "metax-tech.com") }}{{ $_ := set $default "vendor" $vendor }}{{ end }}
{{- end }}
{{- merge (dict) (.Values.config.cluster.domains | default dict) $default | toJson }}
{{- end }}

{{/* Every set of domains in the configuration, as a JSON list: the cluster's,
     and those of overrides that have their own. Where the vendor is auto, those of
     all makers. */}}
{{- define "heddle.domains" -}}
{{- $cluster := include "heddle.clusterDomains" . | fromJson }}
{{- $all := list $cluster }}
{{- range .Values.config.nodes }}
{{- $all = append $all (merge (dict) (.domains | default dict) $cluster) }}
{{- end }}
{{- $each := list }}
{{- range $all }}
{{- if eq .vendor "auto" }}
{{- $auto := . }}
{{- range list "nvidia.com" "amd.com" "metax-tech.com" }}
{{- $each = append $each (merge (dict "vendor" .) $auto) }}
{{- end }}
{{- else }}
{{- $each = append $each . }}
{{- end }}
{{- end }}
{{- $each | uniq | toJson }}
{{- end }}

{{/* The names of shares of the cluster's section, or of its domains, as a JSON list:
     the share, then what is counted of it. Overrides have no names here, since
     heddle-scheduler knows one set for each maker. */}}
{{- define "heddle.shareResources" -}}
{{- $names := .Values.config.cluster.resources | default dict }}
{{- $share := list }}
{{- $counted := list }}
{{- range include "heddle.domains" . | fromJsonArray }}
{{- $share = append $share ($names.sgpu | default (printf "%s/sgpu" .vendor)) }}
{{- $counted = append $counted ($names.vcore | default (printf "%s/vcore" .vendor)) }}
{{- $counted = append $counted ($names.vmemory | default (printf "%s/vmemory" .vendor)) }}
{{- end }}
{{- with $names.vmemoryPercentage }}{{ $counted = append $counted . }}{{ end }}
{{- dict "share" ($share | uniq) "counted" ($counted | uniq) | toJson }}
{{- end }}

{{- define "heddle.labelKeys" -}}
{{- $keys := list }}
{{- range include "heddle.allLabels" . | fromJsonArray }}
{{- if not (contains "*" .) }}{{ $keys = append $keys . }}{{ end }}
{{- end }}
{{- $keys | toJson }}
{{- end }}

{{- define "heddle.labelPatterns" -}}
{{- $patterns := list }}
{{- range include "heddle.allLabels" . | fromJsonArray }}
{{- if contains "*" . }}{{ $patterns = append $patterns . }}{{ end }}
{{- end }}
{{- $patterns | toJson }}
{{- end }}

{{/* Keys and patterns. */}}
{{- define "heddle.allLabels" -}}
{{- $keys := list }}
{{- $mig := list "multiprocessors" "slices.gi" "slices.ci" "engines.copy" "engines.decoder" "engines.encoder" "engines.jpeg" "engines.ofa" }}
{{- range include "heddle.domains" . | fromJsonArray }}
{{- $domains := . }}
{{- range concat (list "product" "count" "memory" "family" "compute.major" "compute.minor" "replicas" "sharing-strategy" "machine" "mode" "clique" "driver-version") $mig (list "*.count") }}
{{- $keys = append $keys (printf "%s/%s.%s" $domains.vendor $domains.card .) }}
{{- end }}
{{- if ne $domains.vendor "nvidia.com" }}
{{- range list "cu-count" "device-id" "product-name" "simd-count" "vram" "compute-memory-partition" "compute-partitioning-supported" "memory-partitioning-supported" "installed" "driver.major" "driver.minor" "driver.patch" }}
{{- $keys = append $keys (printf "%s/%s.%s" $domains.vendor $domains.card .) }}
{{- end }}
{{- end }}
{{- range list "cuda.driver.major" "cuda.driver.minor" "cuda.driver.rev" "cuda.runtime.major" "cuda.runtime.minor" "cuda.driver-version.major" "cuda.driver-version.minor" "cuda.driver-version.revision" "cuda.driver-version.full" "cuda.runtime-version.major" "cuda.runtime-version.minor" "cuda.runtime-version.full" "mig.capable" "mig.strategy" "mps.capable" "vgpu.present" "vgpu.host-driver-version" "vgpu.host-driver-branch" }}
{{- $keys = append $keys (printf "%s/%s" $domains.vendor .) }}
{{- end }}
{{- range concat (list "product" "count" "replicas" "sharing-strategy" "memory") $mig }}
{{- $keys = append $keys (printf "%s/mig-*.%s" $domains.vendor .) }}
{{- end }}
{{- $keys = concat $keys (list (printf "%s/node.usage" $domains.company) (printf "%s/control-plane" $domains.company)) }}
{{- end }}
{{- range list "hca.count" "hca.link-layer" "hca.rate" "hca.type" "netns-mode" }}
{{- $keys = append $keys (printf "heddle.dev/rdma.%s" .) }}
{{- end }}
{{- $keys = append $keys "heddle.dev/nvlink.domain" }}
{{- range prepend .Values.config.nodes .Values.config.cluster }}
{{- range .labels }}
{{- $keys = append $keys .key }}
{{- end }}
{{- end }}
{{- concat $keys .Values.admissionPolicy.extraLabelKeys | uniq | sortAlpha | toJson }}
{{- end }}

{{- define "heddle.taintKeys" -}}
{{- $keys := list }}
{{- range include "heddle.domains" . | fromJsonArray }}
{{- $keys = concat $keys (list (printf "%s/%s.product" .vendor .card) (printf "%s/node.usage" .company) (printf "%s/control-plane" .company)) }}
{{- end }}
{{- $keys | uniq | sortAlpha | toJson }}
{{- end }}

{{/* The effects that the configuration asks for; NoExecute evicts, so it is
     allowed only where it is configured. */}}
{{- define "heddle.taintEffects" -}}
{{- $effects := list "NoSchedule" }}
{{- range prepend .Values.config.nodes .Values.config.cluster }}
{{- with .taints }}{{ with .effect }}
{{- $effects = append $effects . }}
{{- end }}{{ end }}
{{- end }}
{{- $effects | uniq | sortAlpha | toJson }}
{{- end }}

{{/* Whether any node may work with HAMi: "true" or "". It may under auto where shares have MetaX's names. */}}
{{- define "heddle.hami" -}}
{{- $on := "" }}
{{- $metax := has "metax-tech.com/sgpu" (include "heddle.shareResources" . | fromJson).share }}
{{- $cluster := get (.Values.config.cluster.sgpu | default dict) "hami" | toString | default "auto" }}
{{- range prepend .Values.config.nodes .Values.config.cluster }}
{{- $hami := get (.sgpu | default dict) "hami" | toString | default $cluster }}
{{- if or (eq $hami "true") (and $metax (eq $hami "auto")) }}{{ $on = "true" }}{{ end }}
{{- end }}
{{- $on }}
{{- end }}

{{/* Whether the token of heddle-device-plugin may evict pods: "true" or "". Only
     where a card may be shared, and sgpu.rejectedFor is not 0 throughout or the
     enforcer of memory is evict, or where HCAs have count strict. What stands in
     an existing ConfigMap is not known here, so that counts as shared, and so does
     gpuDevice.sGPUHybridMode. And where the policy of remediation is drain. */}}
{{- define "heddle.evicts" -}}
{{- $cluster := .Values.config.cluster }}
{{- $shares := or .Values.config.existingConfigMap .Values.gpuDevice.sGPUHybridMode }}
{{- $patient := not (include "heddle.never" $cluster.sgpu) }}
{{- $strict := "" }}
{{- $over := false }}
{{- range prepend .Values.config.nodes $cluster }}
{{- if eq (.mode | default "") "sgpu" }}{{ $shares = "true" }}{{ end }}
{{- if and (hasKey (.sgpu | default dict) "rejectedFor") (not (include "heddle.never" .sgpu)) }}{{ $patient = true }}{{ end }}
{{- if eq (((.sgpu | default dict).enforce | default dict).memory | default "") "evict" }}{{ $over = true }}{{ end }}
{{- range (.rdma | default dict).resources }}{{ if eq (.count | default "") "strict" }}{{ $strict = "true" }}{{ end }}{{ end }}
{{- end }}
{{- $drains := has "drain" (include "heddle.remediation" . | fromJsonArray) }}
{{- if or (and $shares (or $patient $over)) $strict $drains }}true{{ end }}
{{- end }}

{{/* Whether a section of a NodeConfig disables the eviction of rejected pods. */}}
{{- define "heddle.never" -}}
{{- if regexMatch "^(0+([.]0*)?(ns|us|µs|ms|s|m|h)?)+$" (get (. | default dict) "rejectedFor" | toString) }}true{{ end }}
{{- end }}

{{/* The annotations that heddle-device-plugin may write on its Node, those that
     it may take away besides, and those that it may write on pods of its node.
     HAMi's annotation of cards goes when HAMi is off again; its lock is HAMi's
     to set. heddle.dev/cordoned-gpus and heddle.dev/gpu-release are in none: they
     are for people, and the daemon obeys them. */}}
{{- define "heddle.discoveryNodeAnnotations" -}}
{{- list "heddle.dev/owned-taints" "heddle.dev/driver-absent-since" | toJson }}
{{- end }}

{{- define "heddle.deviceConditions" -}}
{{- list "HeddleReady" "HeddleModePending" "HeddleRemediation" "HeddleRejectsPods" | toJson }}
{{- end }}

{{/* How far remediation goes on any node, as a JSON list of policies. An existing
     ConfigMap's is to stand in config.cluster too. */}}
{{- define "heddle.remediation" -}}
{{- $policies := list }}
{{- range prepend .Values.config.nodes .Values.config.cluster }}
{{- with .health }}{{ with .remediation }}
{{- if ne . "none" }}{{ $policies = append $policies . }}{{ end }}
{{- end }}{{ end }}
{{- end }}
{{- $policies | uniq | toJson }}
{{- end }}

{{/* The taints that heddle-device-plugin may add, where remediation is on, and those that
     it may take away, so that remediation can be turned off. */}}
{{- define "heddle.deviceTaints" -}}
{{- ternary (list "heddle.dev/rejects-pods" "heddle.dev/gpu-unhealthy") (list "heddle.dev/rejects-pods") (not (empty (include "heddle.remediation" . | fromJsonArray))) | toJson }}
{{- end }}

{{- define "heddle.deviceRemovableTaints" -}}
{{- list "heddle.dev/rejects-pods" "heddle.dev/gpu-unhealthy" | toJson }}
{{- end }}

{{- define "heddle.deviceNodeAnnotations" -}}
{{- $keys := list "heddle.dev/gpu-topology" "heddle.dev/free-gpus" "heddle.dev/sgpu-cards" "heddle.dev/hca-counts" "heddle.dev/gpu-release-status" }}
{{- range include "heddle.domains" . | fromJsonArray }}
{{- if eq .vendor "metax-tech.com" }}{{ $keys = concat $keys (list "metax-tech.com/gpu.topology.scores" "metax-tech.com/gpu.topology.losses") }}{{ end }}
{{- end }}
{{- if include "heddle.hami" . }}
{{- $keys = append $keys "metax-tech.com/node-gpu-devices" }}
{{- end }}
{{- $keys | uniq | toJson }}
{{- end }}

{{- define "heddle.deviceRemovableAnnotations" -}}
{{- $keys := list "metax-tech.com/node-gpu-devices" }}
{{- if include "heddle.hami" . }}
{{- $keys = append $keys "hami.io/mutex.lock" }}
{{- end }}
{{- $keys | toJson }}
{{- end }}

{{- define "heddle.devicePodAnnotations" -}}
{{- $keys := list "heddle.dev/sgpu-bound" }}
{{- if include "heddle.hami" . }}
{{- $keys = append $keys "hami.io/bind-phase" }}
{{- end }}
{{- $keys | toJson }}
{{- end }}

{{/* A list of texts in CEL. Between quotes stands only what needs no escape:
     anything else is rejected, also where Helm skips the
     schema of the values. */}}
{{- define "heddle.celTexts" -}}
{{- $texts := list }}
{{- range . }}
{{- $texts = append $texts (include "heddle.celText" .) }}
{{- end }}
{{- if $texts }}{{ printf "[\n  %s\n]" (join ",\n  " $texts) }}{{ else }}[]{{ end }}
{{- end }}

{{/* A list of [before, after] in CEL, for patterns with one "*". */}}
{{- define "heddle.celPairs" -}}
{{- $pairs := list }}
{{- range . }}
{{- $parts := splitList "*" . }}
{{- if ne (len $parts) 2 }}{{ fail (printf "%q: the admission policy takes one * in a key" .) }}{{ end }}
{{- $pairs = append $pairs (printf "[%s, %s]" (include "heddle.celText" (first $parts)) (include "heddle.celText" (last $parts))) }}
{{- end }}
{{- printf "[\n  %s\n]" (join ",\n  " $pairs) }}
{{- end }}

{{/* A list of names of users in CEL, which may have colons and @ besides. */}}
{{- define "heddle.celUsers" -}}
{{- $users := list }}
{{- range . }}
{{- if not (regexMatch "^[-_.:/@A-Za-z0-9]+$" .) }}{{ fail (printf "%q: admissionPolicy.shareWriters takes letters, digits and -_.:/@ only" .) }}{{ end }}
{{- $users = append $users (printf "'%s'" .) }}
{{- end }}
{{- printf "[%s]" (join ", " $users) }}
{{- end }}

{{- define "heddle.celText" -}}
{{- if not (regexMatch "^[-_./A-Za-z0-9]*$" .) }}{{ fail (printf "%q: the admission policy takes letters, digits and -_./ only" .) }}{{ end }}
{{- printf "'%s'" . }}
{{- end }}
