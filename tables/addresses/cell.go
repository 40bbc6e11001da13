// SPDX-License-Identifier: Apache-2.0

// Package addresses derives what the kernel has to know of addresses: of all
// as peers, and of this node's pods.
//
//	endpoints, nodes, services, backends, addresses, routes ──► ipcache ──────────► sluice_ipcache
//	endpoints, routes, neighbours, bridges ───────────────────► local-endpoints ──► sluice_pods
//	class-members, peer-prefixes, policy-readiness ─────▲──────────▲   ▲ epoch
//	map-sources, map-egress, map-policy, map-ipcache: what the kernel has
//
// An address goes over to another class of network policies in one write, when
// the kernel has all that the class is to meet: policy-readiness. Until then it
// stays where it is, and its row says what it waits for.
package addresses

import (
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the ipcache and the local endpoints.
var Cell = cell.Module(
	"addresses",
	"What the kernel knows of addresses",

	cell.Config(Config{}),
	tables.OwnDesired(tables.NewIPCacheTable),
	tables.OwnDesired(tables.NewLocalEndpointTable),
	cell.Provide(
		Config.clusterPrefixes,
	),
	cell.Invoke(
		deriveIPCache,
		deriveLocalEndpoints,
	),
)

// Config says which addresses are inside the cluster, beside those that objects tell.
type Config struct {
	ClusterCIDRs []string `mapstructure:"cluster-cidrs"`
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("cluster-cidrs", c.ClusterCIDRs, "Prefixes inside the cluster: never redirected to an egress gateway, whether or not an object has the address")
}

func (c Config) clusterPrefixes() (tables.ClusterPrefixes, error) {
	var prefixes tables.ClusterPrefixes
	for _, text := range c.ClusterCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse --cluster-cidrs: %w", err)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}
