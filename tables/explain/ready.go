// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// ErrNotReady is what errors wrap while the agent does not know yet all that
// questions are answered from.
var ErrNotReady = errors.New("the agent is not ready")

// ready reports, as an error, which tables are not complete yet, as what is missing in them
// would be taken for nobody's, or that packets do not meet what this agent has written.
func (e *Explainer) ready(txn statedb.ReadTxn) error {
	var missing []string
	for _, table := range []statedb.TableMeta{
		e.t.Endpoints, e.t.Nodes, e.t.NodeAddresses, e.t.Services, e.t.Backends,
		e.t.Locals, e.t.IPCache, e.t.Entries, e.t.Configs, e.t.Sources, e.t.EgressRules, e.t.Gateways, e.t.Covered,
	} {
		if initialized, _ := table.Initialized(txn); !initialized {
			missing = append(missing, string(table.Name()))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("%w: not complete yet: %s", ErrNotReady, strings.Join(missing, ", "))
	}
	if flipped, _ := e.t.Slots.Initialized(txn); !flipped {
		return e.filling(txn)
	}
	return nil
}

// filling says, as an error, that packets meet the maps of a former agent.
func (e *Explainer) filling(txn statedb.ReadTxn) error {
	former, waitsFor := "none", ""
	for slot := range e.t.Slots.All(txn) {
		switch slot.Use {
		case tables.SlotInForce:
			former = strconv.FormatUint(uint64(slot.Number), 10)
		case tables.SlotFilled:
			waitsFor = slot.WaitsFor
		}
	}
	if waitsFor == "" {
		waitsFor = "its tables"
	}
	return fmt.Errorf("%w: it fills its slot of maps, and waits for %s; in force is slot %s, of a former agent",
		ErrNotReady, waitsFor, former)
}
