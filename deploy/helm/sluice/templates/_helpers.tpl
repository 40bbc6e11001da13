{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What selects the pods; a DaemonSet's cannot change. There is one release a cluster, as there is one agent a node. */ -}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* Whether there is an operator: not while nodes are cleaned. */ -}}
{{- define "sluice.operator" -}}
{{- if and .Values.operator.enabled (not .Values.cleanup.enabled) -}}true{{- end -}}
{{- end -}}

{{- /* What selects the pods of the operator, and no agent. */ -}}
{{- define "sluice.operatorSelector" -}}
app.kubernetes.io/name: sluice-operator
{{- end -}}

{{- define "sluice.operatorLabels" -}}
{{- include "sluice.labels" . | replace (include "sluice.selector" .) (include "sluice.operatorSelector" .) -}}
{{- end -}}

{{- /* A value as text: YAML has numbers as floating point, of which large ones would be written 1e+06. */ -}}
{{- define "sluice.text" -}}
{{- if kindIs "float64" . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ include "sluice.text" .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluice.flag" -}}
{{- $value := .value -}}
{{- if kindIs "slice" $value -}}{{- $value = join "," $value -}}{{- end -}}
{{- printf "--%s=%s" .name (include "sluice.text" $value) | quote -}}
{{- end -}}

{{- define "sluice.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{- /* Where the kubelet reaches an address that the agent listens on: by default it asks the node's own. */ -}}
{{- define "sluice.host" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "" "0.0.0.0" "localhost") -}}127.0.0.1{{- else if eq $host "::" -}}::1{{- else -}}{{ $host }}{{- end -}}
{{- end -}}

{{- define "sluice.httpGet" -}}
{{- $flags := .Values.flags -}}
{{- $address := index $flags "api-listen" | default (index $flags "metrics-listen") | required "flags.api-listen and flags.metrics-listen are both empty: one is needed for the probes" -}}
{{- if not (contains "$(" $address) -}}
host: {{ include "sluice.host" $address | quote }}
{{ end -}}
port: {{ include "sluice.port" $address }}
{{- end -}}

{{- define "sluice.metricsPort" -}}
{{- $address := index .Values.flags "metrics-listen" | required (printf "%s needs flags.metrics-listen, such as \":9881\": flags.api-listen is for the node alone" .user) -}}
{{- include "sluice.port" $address -}}
{{- end -}}

{{- /* What PodMonitor and ServiceMonitor say of a target. */ -}}
{{- define "sluice.endpoint" -}}
- port: metrics
  path: /metrics
  {{- with .interval }}
  interval: {{ . }}
  {{- end }}
  relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .metricRelabelings }}
  metricRelabelings:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* Whether egress addresses of pools move between nodes. */ -}}
{{- define "sluice.egressIPs" -}}
{{- if eq (toString (index .Values.flags "egress-ips")) "true" -}}true{{- end -}}
{{- end -}}

{{- /* Whether they are announced to routers. */ -}}
{{- define "sluice.egressBGP" -}}
{{- if eq (toString (index .Values.flags "egress-bgp")) "true" -}}true{{- end -}}
{{- end -}}

{{- /* Whether agents tell on objects the status of policies, which is the default: a flag that is false is empty. */ -}}
{{- define "sluice.objectStatus" -}}
{{- if ne (toString (index .Values.flags "object-status")) "false" -}}true{{- end -}}
{{- end -}}

{{- /* Whether agents have NodeReports: for that, and to acknowledge the nodes that vote on egress addresses. */ -}}
{{- define "sluice.nodeReports" -}}
{{- if or (include "sluice.objectStatus" .) (include "sluice.egressIPs" .) -}}true{{- end -}}
{{- end -}}

{{- /* Whether there is a CNI plugin, with which agents announce new pods to each other. */ -}}
{{- define "sluice.cniPlugin" -}}
{{- $flags := .Values.flags -}}
{{- if and (eq (toString (index $flags "cni-plugin")) "true") $flags.socket (ne (toString (index $flags "endpoint-source")) "cilium") -}}true{{- end -}}
{{- end -}}

{{- /* Whether the directories of the CNI are mounted: to install the plugin, and to remove it. A cleanup
always looks there: a node may have been off when the plugin was removed elsewhere. */ -}}
{{- define "sluice.cniMounts" -}}
{{- if or .Values.cniMounts .Values.cleanup.enabled -}}
true
{{- else if include "sluice.cniPlugin" . -}}
{{- fail "cniMounts=false needs flags.cni-plugin=false: the agent installs the plugin in these directories, and removes it from them" -}}
{{- end -}}
{{- end -}}

{{- /* Where the CNI plugin tells of pods, which is mounted with the socket: beside it, unless a flag says. */ -}}
{{- define "sluice.cniRunDir" -}}
{{- $flags := .Values.flags -}}
{{- if and $flags.socket (ne (dir $flags.socket) "/run/sluice") (not (index $flags "cni-run-dir")) -}}
- {{ include "sluice.flag" (dict "name" "cni-run-dir" "value" (printf "%s/cni" (dir $flags.socket))) }}
{{- end -}}
{{- end -}}

{{- /* Since Kubernetes 1.30 there are these policies, and tokens of pods name the node. By the version, as `helm template` knows of no kinds. */ -}}
{{- define "sluice.admissionPolicy" -}}
{{- if and .Values.admissionPolicy (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}
