// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/reconcilers/nodereport"
	"github.com/sluice-net/sluice/sources/kubernetes"
	policyreports "github.com/sluice-net/sluice/tables/nodereport"
)

// Reporting has the modules that report the status of policies to the operator. They need
// somewhere to write to.
var Reporting = cell.Group(
	// What this node tells: node-report.
	policyreports.Cell,

	// To the NodeReport of this node.
	cell.Provide(func() nodereport.Version { return nodereport.Version(version.Get().Version) }),
	nodereport.Cell,
)

// apiWritersCell provides what writes to the API server; nothing does if the agent
// reports to no server.
var apiWritersCell = cell.Module(
	"api-writers",
	"Connections to write to the API server",

	cell.Provide(newDynamicClient),
)

func newDynamicClient(c *kubernetes.Connection) (dynamic.Interface, error) {
	if c == nil {
		return nil, nil
	}
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("create client for objects: %w", err)
	}
	return client, nil
}
