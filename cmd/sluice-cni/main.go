// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is a chained CNI plugin. It tells the agent of a pod's interface, and
// delays the pod's first process until all policies of the pod are in the kernel. It
// does not change the interface or the result of the previous plugin.
//
//	ADD ──► write a file to the run directory ──► ask the agent ──► "in-force": the pod starts
//	                                          └─ no agent ──► hold the pod: it starts
//	                                                      └─ nothing pinned: wait, then fail
//	DEL ──► remove the file
//
// To hold a pod is to drop all traffic that a policy could concern: the plugin attaches
// the programs that an agent has pinned to the pod's device, and writes the pod's
// addresses to sluice_pods with the flags egress-unknown and policy-unknown. The next
// agent adopts both.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-net/sluice/cmd/version"
)

// versions of the specification: the first that has chained plugins, and all since.
var versions = cniversion.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status},
		versions, "CNI plugin sluice-cni "+version.Get().Version+": it tells Sluice's agent of pods before they start")
}
