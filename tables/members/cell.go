// SPDX-License-Identifier: Apache-2.0

// Package members derives what each address is as a peer of network policies.
//
//	endpoints, nodes, services, ... ──► ipcache        address or prefix ──► member
//	selectors in use ─────────────────► peer-prefixes  selectors of the addresses inside
//	namespaces, port names in use ────► members        member ──► class
//	                                    peer-classes   the selectors that select it
//	                                    selector-matches
//
// All of it is one rule, so that one snapshot answers whether all members that a selector
// selects are in classes with the selector. Work is in proportion to label sets: a pod with
// known labels is one row of ipcache.
//
// Selectors of label sets, nodes and entities select members. Selectors of prefixes select
// addresses, so they are part of a member's identity. Each row of peer-prefixes has all
// selectors that select its addresses, and the longest row around an address decides. The
// exceptions of a prefix are written before it, so that an address never has a selector that
// neither the former nor the present blocks give it.
package members

import (
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Cell derives the members, and the addresses that belong to them.
var Cell = cell.Module(
	"members",
	"What each address is as a peer",

	cell.Config(Config{}),
	cell.Provide(Config.clusterPrefixes),
	cell.ProvidePrivate(shareOf, roomOf),
	tables.OwnDesired(tables.NewIPCacheTable),
	tables.Own(tables.NewPeerPrefixTable),
	tables.OwnDesired(tables.NewMemberTable),
	tables.Own(tables.NewClassTable),
	tables.Own(tables.NewSelectorMatchTable),
	cell.Invoke(func(p derive.Params, all ruleTables) error {
		return derive.Register(p, newRule(all))
	}),
)

// Share is how many classes of each precision can be made for the pods of a namespace. Each takes
// an entry in the rulesets that name it, most of them of other namespaces.
type Share int

func shareOf(c bpf.Config) Share { return Share(max(1, c.MapSizePolicy/256)) }

// Config says which addresses are inside the cluster, beside those that objects tell.
type Config struct {
	ClusterCIDRs []string `mapstructure:"cluster-cidrs"`
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("cluster-cidrs", c.ClusterCIDRs,
		"Prefixes inside the cluster: never redirected to an egress gateway, "+
			"whether or not an object has the address")
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
