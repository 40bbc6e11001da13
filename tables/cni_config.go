// SPDX-License-Identifier: Apache-2.0

package tables

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

var cniConfigFileIndex = UniqueIndex("file", StringKeys,
	func(c *CNIConfig) string { return c.File })

// NewCNIConfigTable creates the table of the CNI configuration, which has one row.
var NewCNIConfigTable = Declare("cni-config", cniConfigFileIndex)
