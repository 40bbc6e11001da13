// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// EgressClass is what an egress class means: the policies that choose its
// endpoints, through which of their selectors.
type EgressClass struct {
	Number   uint32         `json:"number"`
	Digest   bpf.Digest     `json:"digest"`   // of the signature that the policies are of
	Policies []PolicyChoice `json:"policies"` // the one that wins a conflict first

	// ServedHere says that this node may be a gateway for the class, whether
	// or not it is elected now: it then knows the addresses of its pods, so
	// that a failover writes no addresses.
	ServedHere bool `json:"servedHere"`
}

// PolicyChoice is a policy and the selector through which it chooses.
type PolicyChoice struct {
	Policy   string `json:"policy"`
	Selector string `json:"selector"` // canonical text

	// Revision is that of the policy's row. What a later revision wants must
	// not meet whom this one chooses.
	Revision statedb.Revision `json:"revision"`
}

func (c PolicyChoice) String() string { return c.Policy + " by " + c.Selector }

// Equal reports whether two rows say the same.
func (c *EgressClass) Equal(o *EgressClass) bool {
	return c.Number == o.Number && c.Digest == o.Digest && c.ServedHere == o.ServedHere && slices.Equal(c.Policies, o.Policies)
}

// TableHeader implements [statedb.TableWritable].
func (*EgressClass) TableHeader() []string { return []string{"Class", "Policies", "ServedHere"} }

// TableRow implements [statedb.TableWritable].
func (c *EgressClass) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(c.Number), 10), listColumn(stringsOf(c.Policies), " | "), strconv.FormatBool(c.ServedHere),
	}
}

var (
	egressClassNumberIndex = UniqueIndex("number", Uint32Keys,
		func(c *EgressClass) uint32 { return c.Number })

	egressClassPolicyIndex = IndexEach("policy", StringKeys, func(c *EgressClass) []string {
		names := make([]string, len(c.Policies))
		for i, p := range c.Policies {
			names[i] = p.Policy
		}
		return names
	})

	// EgressClassByNumber queries an egress class.
	EgressClassByNumber = egressClassNumberIndex.Query

	// EgressClassesByPolicy queries the classes whose endpoints a policy chooses.
	EgressClassesByPolicy = egressClassPolicyIndex.Query
)

// NewEgressClassTable creates the table of egress classes.
var NewEgressClassTable = Declare("egress-classes", egressClassNumberIndex, egressClassPolicyIndex)
