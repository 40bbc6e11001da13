// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// Config says to whom network policies apply and whom their prefixes mean.
type Config struct {
	Enforcement     string   `mapstructure:"enforcement"`
	PolicyCIDRMatch []string `mapstructure:"policy-cidr-match"`
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("enforcement", c.Enforcement,
		"To which pods network policies apply: default (to those that a policy chooses), always (to all: what no policy allows is denied) or never (to none)")
	flags.StringSlice("policy-cidr-match", c.PolicyCIDRMatch,
		"What is inside the cluster and is meant too by the CIDR rules of Cilium's policies: pods, nodes, or both (none if empty). Those of Kubernetes always mean both")
}

func (c Config) enforcement() (tables.Enforcement, error) {
	switch e := tables.Enforcement(c.Enforcement); e {
	case tables.EnforcementDefault, tables.EnforcementAlways, tables.EnforcementNever:
		return e, nil
	}
	return "", fmt.Errorf("parse --enforcement %q: want default, always or never", c.Enforcement)
}

// cidrMatch is whom the prefixes of Cilium's policies mean inside the cluster.
type cidrMatch struct{ pods, nodes bool }

func (c Config) cidrMatch() (cidrMatch, error) {
	for _, what := range c.PolicyCIDRMatch {
		if what != "pods" && what != "nodes" {
			return cidrMatch{}, fmt.Errorf("parse --policy-cidr-match %q: want pods or nodes", what)
		}
	}
	return cidrMatch{
		pods:  slices.Contains(c.PolicyCIDRMatch, "pods"),
		nodes: slices.Contains(c.PolicyCIDRMatch, "nodes"),
	}, nil
}
