// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// States of a [CNIConfig].
const (
	CNIPending   = "pending"   // not installed yet: the agent is not ready
	CNIInstalled = "installed" // new pods go through the plugin
	CNIWaiting   = "waiting"   // the node has no other configuration that it could be chained to
	CNIRemoved   = "removed"   // as --cni-plugin is false
	CNIBroken    = "broken"    // see the error
)

// CNIConfig says what has become of the node's CNI configuration with the plugin.
type CNIConfig struct {
	File       string   `json:"file"`               // that the agent writes
	MadeFrom   string   `json:"madeFrom,omitempty"` // the file of the CNI's own
	Network    string   `json:"network,omitempty"`
	CNIVersion string   `json:"cniVersion,omitempty"`
	Others     []string `json:"others,omitempty"` // plugins that others have added to the file
	State      string   `json:"state"`
	Error      string   `json:"error,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*CNIConfig) TableHeader() []string {
	return []string{"File", "MadeFrom", "Network", "CNIVersion", "Others", "State", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *CNIConfig) TableRow() []string {
	return []string{
		c.File, orDash(c.MadeFrom), orDash(c.Network), orDash(c.CNIVersion), listColumn(c.Others, ", "),
		c.State, orDash(c.Error),
	}
}

var cniConfigFileIndex = statedb.Index[*CNIConfig, string]{
	Name:       "file",
	FromObject: func(c *CNIConfig) index.KeySet { return index.NewKeySet(index.String(c.File)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// NewCNIConfigTable creates the table of the CNI configuration, which has one row.
func NewCNIConfigTable(db *statedb.DB) (statedb.RWTable[*CNIConfig], error) {
	return statedb.NewTable(db, "cni-config", cniConfigFileIndex)
}
