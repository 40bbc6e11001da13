// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is a chained CNI plugin: it has the agent put a pod in force
// before the pod's first process starts. It changes nothing of what the plugins
// before it have made.
//
//	ADD ──► a file in the run directory ──► the agent ──► "in force": the pod starts
//	                                    └─ no agent ──► the plugin holds the pod: it starts
//	                                                └─ nothing pinned: wait, then fail
//	DEL ──► the file goes
//
// To hold a pod is to drop what a policy could concern: the programs that an agent
// has pinned run at the pod's device, and its address is in sluice_pods with the
// flags of one of which nothing is known. The next agent takes over from there.
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
