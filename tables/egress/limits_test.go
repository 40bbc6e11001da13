// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// Each policy with a limit has a row, in bytes a second in the kernel, until the limit or the
// policy is gone.
func TestLimits(t *testing.T) {
	db := statedb.New()
	policies := tablestest.Open(t, db, tables.NewEgressPolicyTable)
	limits := tablestest.Open(t, db, tables.NewEgressLimitTable)
	step := tablestest.NewRule(t, db, limitRule(limits, policies))
	inKernel := func() map[string]bpf.LimitValue {
		step.Work()
		values := map[string]bpf.LimitValue{}
		for row := range limits.All(db.ReadTxn()) {
			require.Equal(t, bpf.PolicyCookie(row.Policy), row.MapKey().Policy)
			values[row.Policy] = row.MapValue()
		}
		return values
	}
	policy := func(name string, all, each tables.Bandwidth) *tables.EgressPolicy {
		return &tables.EgressPolicy{Name: name, Bandwidth: all, PodBandwidth: each}
	}
	policies.Put(policy("free", 0, 0), policy("a", 8000, 0), policy("b", 0, 1<<30))
	require.Equal(t, map[string]bpf.LimitValue{"a": {Rate: 1000}, "b": {PodRate: 1 << 27}}, inKernel())
	policies.Put(policy("a", 16000, 8000), policy("b", 0, 0))
	require.Equal(t, map[string]bpf.LimitValue{"a": {Rate: 2000, PodRate: 1000}}, inKernel())
	policies.Put(policy("free", 1e12, 0))
	policies.Remove(policy("a", 16000, 8000))
	require.Equal(t, map[string]bpf.LimitValue{"free": {Rate: 125e9}}, inKernel())
}
