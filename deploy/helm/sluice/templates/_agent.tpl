{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Before Kubernetes 1.30 an annotation says what a field says since. */ -}}
{{- define "sluice.appArmorField" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end -}}

{{- define "sluice.securityContext" -}}
runAsUser: 0 # the capabilities take effect for root only
readOnlyRootFilesystem: true
{{- with .Values.security }}
{{- if .privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add:
  - BPF       # create, read and write maps; load programs
  - NET_ADMIN # attach programs; make the overlay device; read the conntrack table; write net.* sysctls
  - PERFMON   # programs that read kernel memory, as the backstop does
  {{- if include "sluice.egressIPs" $ }}
  - NET_RAW   # announce egress addresses and ask for other owners, by ARP and neighbor discovery
  {{- end }}
  {{- range .extraCapabilities }}
  - {{ . }}
  {{- end }}
  # No SYS_ADMIN: it would only be needed to mount bpffs. No
  # SYS_RESOURCE: since Linux 5.11 maps count as the cgroup's memory,
  # not as locked memory, and the agent needs 6.6. No NET_RAW but
  # for egress addresses that move: probes go by an ordinary socket.
  # No SYS_MODULE: the kernel loads vxlan by itself.
{{- end }}
{{- with .seccompProfile }}
# Some runtimes' profiles allow bpf() with SYS_ADMIN only. The agent then
# says that a security policy forbids it: make this Unconfined there.
seccompProfile:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (and (include "sluice.appArmorField" $) .appArmorProfile) }}
# The runtimes' default profiles forbid writing under /sys/fs/bpf.
appArmorProfile:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.volumeMounts" -}}
- name: bpffs # pinned maps, programs and links
  mountPath: {{ .Values.flags.bpffs }}
  mountPropagation: HostToContainer
{{- with .Values.flags.socket }}
- name: run # the socket
  mountPath: {{ dir . }}
{{- end }}
{{- if include "sluice.cniMounts" . }}
- name: cni-conf # the plugin is chained to the CNI's own configuration
  mountPath: {{ index .Values.flags "cni-conf-dir" }}
- name: cni-bin # the plugin itself
  mountPath: {{ index .Values.flags "cni-bin-dir" }}
{{- end }}
{{- if and (index .Values.flags "overlay-keys") (not .Values.cleanup.enabled) }}
- name: overlay-keys # followed when the Secret changes
  mountPath: {{ dir (index .Values.flags "overlay-keys") }}
  readOnly: true
{{- end }}
{{- if and .Values.ledger.secret (not .Values.cleanup.enabled) }}
- name: ledger-secret # followed when the Secret changes
  mountPath: /etc/sluice/ledger
  readOnly: true
{{- end }}
{{- with index .Values.flags "ledger-file" }}
- name: ledger # which pod had an egress address
  mountPath: {{ dir . }}
{{- end }}
- name: state # former values of sysctls, and the lock
  mountPath: {{ index .Values.flags "state-dir" }}
- name: cilium # asked how it routes, where it is the CNI
  mountPath: /var/run/cilium
  readOnly: true
- name: sysctls # rp_filter, ip_local_port_range; the container's own /proc/sys is read-only
  mountPath: {{ .Values.flags.procfs }}/sys/net
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
