package agent

import (
	"github.com/cilium/statedb"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

func TestZZ(t *testing.T) {
	for seed := uint64(1); seed < 6; seed++ {
		c := newCluster(t, []string{"--node-name=" + policytest.LocalNode})
		require.NoError(t, c.api.Sync())
		require.NoError(t, c.hive.Start(c.log, t.Context()))
		g := policytest.NewGenerator(seed)
		for i := range 40 {
			for _, manifest := range g.World(5, 20) {
				require.NoError(t, c.api.Apply([]byte(manifest)), manifest)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			err := c.quiet(ctx)
			cancel()
			if err != nil {
				txn := c.base.DB.ReadTxn()
				fmt.Println("STUCK", seed, i, c.desire.undone(txn))
				for row := range c.desire.IPCache.All(txn) {
					fmt.Printf("ipcache %v waits=%d\n", row.TableRow(), row.WaitsFor)
				}
				for _, table := range c.base.DB.GetTables(txn) {
					switch table.Name() {
					case "class-members", "policy-readiness", "class-readiness", "map-ipcache", "peer-prefixes", "local-endpoints", "policy-rules", "map-pods", "classes", "map-classes":
						for _, l := range dumpTable(c, table.Name()) {
							fmt.Println(table.Name(), l)
						}
					}
				}
				t.Fatal(err)
			}
		}
	}
}

func dumpTable(c *cluster, name string) (out []string) {
	txn := c.base.DB.ReadTxn()
	for _, meta := range c.base.DB.GetTables(txn) {
		if meta.Name() == name {
			tbl := anyTable(meta)
			seq := tbl.All(txn)
			for obj := range seq {
				if r, ok := obj.(*tables.PolicyReadiness); ok {
					out = append(out, fmt.Sprint(r.TableRow(), r.Digest))
					continue
				}
				out = append(out, fmt.Sprintf("%+v", obj))
			}
		}
	}
	return out
}

func anyTable(m statedb.TableMeta) statedb.AnyTable { return statedb.AnyTable{Meta: m} }
