// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/statedb"
)

// ErrNotReady is what errors wrap while the agent does not know yet all that
// questions are answered from.
var ErrNotReady = errors.New("the agent is not ready")

// ready reports, as an error, which tables are not complete yet: an address that is missing in them
// would look as if no object had it.
func (e *Explainer) ready(txn statedb.ReadTxn) error {
	var missing []string
	for _, table := range []statedb.TableMeta{
		e.t.Endpoints, e.t.Nodes, e.t.NodeAddresses, e.t.Services, e.t.Backends,
		e.t.Pods, e.t.Subjects, e.t.Routes, e.t.IPCache, e.t.Frontends, e.t.Members, e.t.Entries, e.t.Verdicts,
		e.t.Configs, e.t.EgressRules, e.t.Gateways, e.t.Blocks, e.t.Covered,
	} {
		if initialized, _ := table.Initialized(txn); !initialized {
			missing = append(missing, string(table.Name()))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("%w: not complete yet: %s", ErrNotReady, strings.Join(missing, ", "))
}
