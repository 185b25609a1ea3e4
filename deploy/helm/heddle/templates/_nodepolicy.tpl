{{/* What the token of a node's daemon may change of Nodes: dict "root" $ "name" <policy> "account" <of the daemon>
     "labels" <whether labels are its own> "annotations" <its own> "removable" <those it may remove>
     "taints" <keys of its own> "removableTaints" <those it may remove> "effects" <that its taints may have>
     "conditions" <its own>.

     The keys are no parameter object. The API server looks parameters up before it looks at
     matchConditions: while the object is missing, it would reject every write to every Node, by the
     administrator and by all kubelets. */}}
{{- define "heddle.nodePolicy" -}}
{{- $name := .name }}
{{- $meta := list "annotations" "managedFields" "resourceVersion" "generation" }}
{{- if .labels }}{{ $meta = prepend $meta "labels" }}{{ end }}
{{- $meta = printf "['%s']" (join "', '" $meta) }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "heddle.labels" (dict "root" .root "name" $name) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE, DELETE]
      resources: [nodes, nodes/status]
  matchConditions:
  - name: {{ trimPrefix "heddle-" $name }}-only
    expression: >-
      has(request.userInfo.username)
      && request.userInfo.username == '{{ .account }}'
  variables:
  {{- if .labels }}
  - name: allowedLabels
    expression: |-
      {{- include "heddle.celTexts" (include "heddle.labelKeys" .root | fromJsonArray) | nindent 6 }}
  # What stands before and after the "*": it is one or more characters, as in
  # api/wellknown, Match.
  - name: allowedPatterns
    expression: |-
      {{- include "heddle.celPairs" (include "heddle.labelPatterns" .root | fromJsonArray) | nindent 6 }}
  {{- end }}
  # Not heddle.dev/cordoned-gpus and heddle.dev/gpu-release: an operator writes them,
  # and the daemon obeys.
  - name: allowedAnnotations
    expression: |-
      {{- include "heddle.celTexts" .annotations | nindent 6 }}
  {{- if .removable }}
  - name: removableAnnotations
    expression: |-
      {{- include "heddle.celTexts" .removable | nindent 6 }}
  {{- end }}
  - name: allowedTaints
    expression: |-
      {{- include "heddle.celTexts" .taints | nindent 6 }}
  - name: removableTaints
    expression: |-
      {{- include "heddle.celTexts" (.removableTaints | default list) | nindent 6 }}
  - name: allowedEffects
    expression: |-
      {{- include "heddle.celTexts" .effects | nindent 6 }}
  {{- if .conditions }}
  - name: allowedConditions
    expression: |-
      {{- include "heddle.celTexts" .conditions | nindent 6 }}
  {{- end }}
  # The API server takes it from the token, which it bound to a pod and its
  # node. A token made by hand has none, and may write no Node at all.
  - name: tokenNodes
    expression: >-
      has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
      ? request.userInfo.extra['authentication.kubernetes.io/node-name'] : []
  - name: oldMeta
    expression: "oldObject == null ? dyn({}) : dyn(oldObject.metadata)"
  - name: newMeta
    expression: "object == null ? dyn({}) : dyn(object.metadata)"
  - name: oldSpec
    expression: "oldObject == null || !has(oldObject.spec) ? dyn({}) : dyn(oldObject.spec)"
  - name: newSpec
    expression: "object == null || !has(object.spec) ? dyn({}) : dyn(object.spec)"
  {{- if .conditions }}
  - name: oldStatus
    expression: "oldObject == null || !has(oldObject.status) ? dyn({}) : dyn(oldObject.status)"
  - name: newStatus
    expression: "object == null || !has(object.status) ? dyn({}) : dyn(object.status)"
  {{- end }}
  # What belongs to the API server changes with every write. A write of the
  # status can change metadata too.
  - name: changedFields
    expression: >-
      variables.newMeta.filter(k, !(k in {{ $meta }})
      && !(k in variables.oldMeta && variables.oldMeta[k] == variables.newMeta[k])).map(k, 'metadata.' + k)
      + variables.oldMeta.filter(k, !(k in {{ $meta }})
      && !(k in variables.newMeta)).map(k, 'metadata.' + k)
      + variables.newSpec.filter(k, k != 'taints' && !(k in variables.oldSpec && variables.oldSpec[k] == variables.newSpec[k])).map(k, 'spec.' + k)
      + variables.oldSpec.filter(k, k != 'taints' && !(k in variables.newSpec)).map(k, 'spec.' + k)
      {{- if .conditions }}
      + variables.newStatus.filter(k, k != 'conditions'
      && !(k in variables.oldStatus && variables.oldStatus[k] == variables.newStatus[k])).map(k, 'status.' + k)
      + variables.oldStatus.filter(k, k != 'conditions' && !(k in variables.newStatus)).map(k, 'status.' + k)
      {{- end }}
  {{- if .labels }}
  {{- include "heddle.labelRecords" $name | nindent 2 }}
  - name: foreignLabels
    expression: >-
      variables.changedLabels.filter(k, !(k in variables.allowedLabels) && !(k in variables.retiredLabels)
      && !variables.allowedPatterns.exists(p, size(k) > size(p[0]) + size(p[1])
      && k.startsWith(p[0]) && k.endsWith(p[1])))
  {{- end }}
  - name: oldAnnotations
    expression: "'annotations' in variables.oldMeta ? variables.oldMeta['annotations'] : dyn({})"
  - name: newAnnotations
    expression: "'annotations' in variables.newMeta ? variables.newMeta['annotations'] : dyn({})"
  - name: foreignAnnotations
    expression: >-
      variables.newAnnotations.filter(k, !(k in variables.allowedAnnotations)
      && !(k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.newAnnotations[k]))
      + variables.oldAnnotations.filter(k, !(k in variables.allowedAnnotations)
      {{- if .removable }}
      && !(k in variables.removableAnnotations)
      {{- end }}
      && !(k in variables.newAnnotations))
  - name: oldTaints
    expression: "'taints' in variables.oldSpec ? variables.oldSpec['taints'] : dyn([])"
  - name: newTaints
    expression: "'taints' in variables.newSpec ? variables.newSpec['taints'] : dyn([])"
  - name: addedTaints
    expression: variables.newTaints.filter(t, !(t in variables.oldTaints))
  - name: foreignTaints
    expression: >-
      (variables.addedTaints
      + variables.oldTaints.filter(t, !(t in variables.newTaints) && !(t.key in variables.removableTaints)))
      .filter(t, !(t.key in variables.allowedTaints)).map(t, t.key)
  - name: foreignEffects
    expression: variables.addedTaints.filter(t, !(t.effect in variables.allowedEffects)).map(t, t.effect)
  {{- if .conditions }}
  - name: oldConditions
    expression: "'conditions' in variables.oldStatus ? variables.oldStatus['conditions'] : dyn([])"
  - name: newConditions
    expression: "'conditions' in variables.newStatus ? variables.newStatus['conditions'] : dyn([])"
  - name: foreignConditions
    expression: >-
      variables.newConditions.filter(c, !(c.type in variables.allowedConditions) && !(c in variables.oldConditions)).map(c, c.type)
      + variables.oldConditions.filter(c, !(c.type in variables.allowedConditions)
      && !variables.newConditions.exists(n, n.type == c.type)).map(c, c.type)
  {{- end }}
  validations:
  - expression: variables.tokenNodes == [request.name]
    message: {{ $name }} may write only the Node that its pod runs on, by the pod's own token
    reason: Forbidden
  - expression: request.operation == 'UPDATE' && (!has(request.subResource) || request.subResource {{ ternary "in ['', 'status']" "== ''" (not (empty .conditions)) }})
    message: {{ $name }} may neither create nor delete a Node{{ if not .conditions }} nor write its status{{ end }}
    reason: Forbidden
  - expression: request.operation != 'UPDATE' || size(variables.changedFields) == 0
    message: {{ $name }} may change its own {{ if .labels }}labels, {{ end }}taints, annotations {{- if .conditions }} and conditions{{ end }} only
    messageExpression: "'{{ $name }} may not change ' + variables.changedFields.join(', ')"
    reason: Forbidden
  {{- if .labels }}
  - expression: size(variables.foreignLabels) == 0
    message: {{ $name }} may change only its own labels
    messageExpression: >-
      '{{ $name }} may not change labels ' + variables.foreignLabels.join(', ')
      + '; the key of a label rule must be in the chart\'s config.cluster.labels, config.nodes or admissionPolicy.extraLabelKeys'
    reason: Forbidden
  {{- include "heddle.labelRecordsRight" $name | nindent 2 }}
  {{- end }}
  - expression: size(variables.foreignAnnotations) == 0
    message: {{ $name }} may change only its own annotations
    messageExpression: "'{{ $name }} may not change annotations ' + variables.foreignAnnotations.join(', ')"
    reason: Forbidden
  - expression: size(variables.foreignTaints) == 0
    message: {{ $name }} may change only its own taints
    messageExpression: "'{{ $name }} may not change taints ' + variables.foreignTaints.join(', ')"
    reason: Forbidden
  - expression: size(variables.foreignEffects) == 0
    message: {{ $name }} may not add taints of this effect
    messageExpression: "'{{ $name }} may not add taints of effect ' + variables.foreignEffects.join(', ')"
    reason: Forbidden
  {{- if .conditions }}
  - expression: size(variables.foreignConditions) == 0
    message: {{ $name }} may change only its own conditions
    messageExpression: "'{{ $name }} may not change conditions ' + variables.foreignConditions.join(', ')"
    reason: Forbidden
  {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "heddle.labels" (dict "root" .root "name" $name) | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}

{{/* Variables about labels that a daemon writes by server-side apply, under its own name as field manager. */}}
{{- define "heddle.labelRecords" -}}
- name: oldLabels
  expression: "'labels' in variables.oldMeta ? variables.oldMeta['labels'] : dyn({})"
- name: newLabels
  expression: "'labels' in variables.newMeta ? variables.newMeta['labels'] : dyn({})"
- name: changedLabels
  expression: >-
    variables.newLabels.filter(k, !(k in variables.oldLabels && variables.oldLabels[k] == variables.newLabels[k]))
    + variables.oldLabels.filter(k, !(k in variables.newLabels))
- name: labelOwners
  expression: >-
    ('managedFields' in variables.oldMeta ? variables.oldMeta['managedFields'] : dyn([]))
    .filter(m, has(m.fieldsV1) && 'f:metadata' in m.fieldsV1 && 'f:labels' in m.fieldsV1['f:metadata'])
- name: newLabelOwners
  expression: >-
    ('managedFields' in variables.newMeta ? variables.newMeta['managedFields'] : dyn([]))
    .filter(m, has(m.fieldsV1) && 'f:metadata' in m.fieldsV1 && 'f:labels' in m.fieldsV1['f:metadata'])
# A label may still be removed when its rule, its domain or its export is gone from
# the configuration: one that server-side apply records as the daemon's alone.
# Kubernetes' own labels are never among them.
- name: retiredLabels
  expression: >-
    variables.oldLabels.filter(k, !(k in variables.newLabels) && !k.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/')
    && variables.labelOwners.exists(m, 'f:' + k in m.fieldsV1['f:metadata']['f:labels'])
    && variables.labelOwners.all(m, !('f:' + k in m.fieldsV1['f:metadata']['f:labels'])
    || m.manager == '{{ . }}' && m.operation == 'Apply'))
# The daemon removes only what is recorded as its own: what is written in any other
# way would outlast a stolen token.
- name: unrecordedLabels
  expression: >-
    variables.changedLabels.filter(k, k in variables.newLabels && !variables.newLabelOwners.exists(m,
    m.manager == '{{ . }}' && m.operation == 'Apply' && 'f:' + k in m.fieldsV1['f:metadata']['f:labels']))
# The API server merges the oldest of more than ten owners into ancient-changes.
- name: forgedOwners
  expression: >-
    variables.newLabelOwners.filter(m, !(m.manager == '{{ . }}' && m.operation == 'Apply')
    && m.fieldsV1['f:metadata']['f:labels'].exists(k, !variables.labelOwners.exists(o, o.operation == m.operation
    && (o.manager == m.manager || m.manager == 'ancient-changes') && k in o.fieldsV1['f:metadata']['f:labels']))).map(m, m.manager)
{{- end }}

{{- define "heddle.labelRecordsRight" -}}
- expression: size(variables.unrecordedLabels) == 0
  message: {{ . }} may write labels by server-side apply under its own name only
  messageExpression: "'{{ . }} may write labels by server-side apply under its own name only: ' + variables.unrecordedLabels.join(', ')"
  reason: Forbidden
- expression: size(variables.forgedOwners) == 0
  message: {{ . }} may not make others the owners of labels
  messageExpression: "'{{ . }} may not make others the owners of labels: ' + variables.forgedOwners.join(', ')"
  reason: Forbidden
{{- end }}

{{/* Which Events a daemon's token may write: dict "root" $ "daemon" <name> "node" <whether it runs
     on each node, and writes about its own only> "pods" <whether it writes about pods too, and again>. */}}
{{- define "heddle.eventsPolicy" -}}
{{- $name := printf "%s-events" .daemon }}
# A token of {{ .daemon }} may write Events as itself{{ if .node }} on its own node{{ end }}, about
# {{ if .node }}that Node{{ else }}Nodes{{ end }}{{ if .pods }} or pods{{ end }}, and no other. It fails closed, as the policy of Nodes.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "heddle.labels" (dict "root" .root "name" .daemon) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [events]
  matchConditions:
  - name: {{ trimPrefix "heddle-" .daemon }}-only
    expression: >-
      has(request.userInfo.username)
      && request.userInfo.username == '{{ include "heddle.account" (dict "root" .root "name" .daemon) }}'
  variables:
  {{- if .node }}
  # See the policy of Nodes.
  - name: tokenNodes
    expression: >-
      has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
      ? request.userInfo.extra['authentication.kubernetes.io/node-name'] : []
  {{- end }}
  - name: own
    expression: "oldObject == null ? [object] : [object, oldObject]"
  validations:
  {{- if not .pods }}
  - expression: request.operation == 'CREATE'
    message: {{ .daemon }} may not change an Event
    reason: Forbidden
  {{- end }}
  - expression: >-
      variables.own.all(e, has(e.source) && has(e.source.component) && e.source.component == '{{ .daemon }}'
      {{- if .node }}
      && has(e.source.host) && variables.tokenNodes == [e.source.host]
      {{- end }})
    message: {{ .daemon }} may write only Events of {{ if .node }}the Node that its own pod runs on, by the pod's own token{{ else }}its own{{ end }}
    reason: Forbidden
  - expression: >-
      has(object.involvedObject.kind) && has(object.involvedObject.name) && (
      {{- if .pods }}object.involvedObject.kind == 'Pod' || {{ end }}object.involvedObject.kind == 'Node'
      {{- if .node }} && variables.tokenNodes == [object.involvedObject.name]{{ end }})
    message: {{ .daemon }} may write Events about {{ if .pods }}pods and {{ end }}{{ if .node }}its own Node{{ else }}Nodes{{ end }} only
    reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "heddle.labels" (dict "root" .root "name" .daemon) | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}
