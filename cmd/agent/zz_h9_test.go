package agent

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/statedb"
)

func TestH9(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("H9"), 10, 64)
	g := newPolicyGenerator(t, 1000+seed)
	for i := range 40 {
		change, fault := g.faultyChange(t.Context())
		if err := g.settlePolicies(t.Context()); err != nil {
			s := err.Error()
			if len(s) > 1500 {
				s = s[:1500]
			}
			fmt.Println("event", i, fault, change, "\n", s)
			txn := g.base.DB.ReadTxn()
			for m := range g.policy.Compute.Members.All(txn) {
				if m.OfClass || m.Evaluated == 0 && m.Role != 0 {
					fmt.Printf("%+v\n", *m)
				}
			}
			for _, tbl := range g.base.DB.GetTables(txn) {
				if n := tbl.Name(); n == "policy-readiness" || n == "ipcache" || n == "local-endpoints" || n == "map-classes" {
					fmt.Println(n)
					a := statedb.AnyTable{Meta: tbl}
					for o := range a.All(txn) {
						fmt.Println("  ", o.(statedb.TableWritable).TableRow())
					}
				}
			}
			t.FailNow()
		}
	}
}
