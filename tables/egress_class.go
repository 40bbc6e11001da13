// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

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
	egressClassNumberIndex = statedb.Index[*EgressClass, uint32]{
		Name:       "number",
		FromObject: func(c *EgressClass) index.KeySet { return index.NewKeySet(index.Uint32(c.Number)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}

	egressClassPolicyIndex = statedb.Index[*EgressClass, string]{
		Name: "policy",
		FromObject: func(c *EgressClass) index.KeySet {
			keys := make([]index.Key, len(c.Policies))
			for i, p := range c.Policies {
				keys[i] = index.String(p.Policy)
			}
			return index.NewKeySet(keys...)
		},
		FromKey:    index.String,
		FromString: index.FromString,
	}

	// EgressClassByNumber queries an egress class.
	EgressClassByNumber = egressClassNumberIndex.Query

	// EgressClassesByPolicy queries the classes whose endpoints a policy chooses.
	EgressClassesByPolicy = egressClassPolicyIndex.Query
)

// NewEgressClassTable creates the table of egress classes.
func NewEgressClassTable(db *statedb.DB) (statedb.RWTable[*EgressClass], error) {
	return statedb.NewTable(db, "egress-classes", egressClassNumberIndex, egressClassPolicyIndex)
}
