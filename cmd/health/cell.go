// SPDX-License-Identifier: Apache-2.0

package health

import (
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell provides the [Reporter] and the script command health. [ForModule] turns
// the reporter into the cell.Health of each module.
var Cell = cell.Module(
	"health",
	"What the parts of the agent say about themselves",

	tables.Own(tables.NewHealthTable),
	cell.Provide(
		NewReporter,
		func(health statedb.RWTable[*tables.Health]) tables.SourceOut {
			return tables.NewSourceOut("modules", health)
		},
		func(db *statedb.DB, table statedb.Table[*tables.Health]) hive.ScriptCmdOut {
			return hive.NewScriptCmd("health", command(db, table))
		},
	),
)

// ForModule returns the reporter of a module, for [hive.Options.ModulePrivateProviders].
func ForModule(r *Reporter, id cell.FullModuleID) cell.Health { return r.Scope(id.String()) }
