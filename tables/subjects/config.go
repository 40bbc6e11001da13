// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// Config says which pods network policies apply to, and what their prefixes select.
type Config struct {
	Enforcement     string   `mapstructure:"enforcement"`
	PolicyCIDRMatch []string `mapstructure:"policy-cidr-match"`

	// MaxRulesetEntries limits the map entries for all policies of a pod.
	MaxRulesetEntries int `mapstructure:"max-ruleset-entries"`
}

// DefaultConfig enforces the policies that select a pod. A ruleset may take an eighth of the
// default size of the maps.
var DefaultConfig = Config{Enforcement: string(tables.EnforcementDefault), MaxRulesetEntries: 16384}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("enforcement", c.Enforcement,
		"Pods that network policies apply to: default (those that a policy selects), "+
			"always (all: what no policy allows is denied) or never (none)")
	flags.StringSlice("policy-cidr-match", c.PolicyCIDRMatch,
		"What CIDR rules of Cilium's policies select inside the cluster: pods, nodes, or both "+
			"(none if empty). Those of Kubernetes always select both")
	flags.Int("max-ruleset-entries", c.MaxRulesetEntries,
		"Most map entries for the network policies of a pod: a pod whose policies need more is "+
			"isolated in the directions that they are about")
}

func (c Config) enforcement() (tables.Enforcement, error) {
	switch e := tables.Enforcement(c.Enforcement); e {
	case tables.EnforcementDefault, tables.EnforcementAlways, tables.EnforcementNever:
		return e, nil
	}
	return "", fmt.Errorf("parse --enforcement %q: want default, always or never", c.Enforcement)
}

// MaxEntries is --max-ruleset-entries.
type MaxEntries int

func (c Config) maxEntries() (MaxEntries, error) {
	if c.MaxRulesetEntries < 1 {
		return 0, fmt.Errorf("--max-ruleset-entries %d: want at least 1", c.MaxRulesetEntries)
	}
	return MaxEntries(c.MaxRulesetEntries), nil
}

func (c Config) cidrMatch() (CIDRMatch, error) {
	for _, what := range c.PolicyCIDRMatch {
		if what != "pods" && what != "nodes" {
			return CIDRMatch{}, fmt.Errorf("parse --policy-cidr-match %q: want pods or nodes", what)
		}
	}
	return CIDRMatch{
		Pods:  slices.Contains(c.PolicyCIDRMatch, "pods"),
		Nodes: slices.Contains(c.PolicyCIDRMatch, "nodes"),
	}, nil
}
