// SPDX-License-Identifier: Apache-2.0

// Package lab builds a cluster out of network namespaces, for the demonstration
// and for tests with real packets: nodes with pods, an agent for each node, and
// a server outside that says which source address it sees.
//
//	           switch (bridge)                    outside (bridge)
//	                │ 192.168.50.0/24                  │ 203.0.113.0/24
//	┌─ node-1 ── eth0                                eth1 .11, egress IP .101 ──┐
//	│  pods 10.1.0.0/16                                                         │
//	├─ node-2 ── eth0                                eth1 .12, egress IP .102 ──┤
//	└─ node-3 ── eth0                                eth1 .13, egress IP .103 ──┤
//	                                                                            │
//	                                      world eth0 .1, serves 198.51.100.0/24 ┘
//
// The world reaches only what is on the outer network: it has no route to pods,
// so a packet that leaks with a pod's address gets no answer, and is seen.
//
// Nothing touches the network that the process is in. All namespaces are
// anonymous, held by file descriptors, and the agents' BPF file systems are
// mounted in mount namespaces of their own: whatever becomes of the process, the
// kernel removes all of it. Only the directory with logs and manifests remains
// after a SIGKILL.
package lab
