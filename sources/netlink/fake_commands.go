// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/tables"
)

func fakeCommands(f *Fake) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"netlink/set": script.Command(
			script.CmdUsage{
				Summary: "Set devices, addresses, routes, neighbours and bridge entries",
				Args:    "file...",
				Detail: []string{
					"The YAML files together hold the complete state. Lists: devices, addresses,",
					"routes, neighbours, bridgeEntries. Fields are those of the tables' JSON;",
					"devices may be referred to by name: device, master, parent, bridge.",
				},
			},
			func(s *script.State, args ...string) (script.WaitFunc, error) {
				var files [][]byte
				for _, name := range args {
					data, err := os.ReadFile(s.Path(name))
					if err != nil {
						return nil, fmt.Errorf("read state: %w", err)
					}
					files = append(files, data)
				}
				state, err := ParseState(files...)
				if err != nil {
					return nil, err
				}
				f.Set(state)
				return nil, nil
			},
		),
		"netlink/hold": script.Command(
			script.CmdUsage{Summary: "Hold the initialization of the netlink tables until the next netlink/set"},
			func(*script.State, ...string) (script.WaitFunc, error) { return nil, f.Hold() },
		),
	})
}

// ParseState reads a state from YAML files that together hold all of it. Rows
// have the fields of their JSON form, and may name devices instead of giving
// their index. A route is of the main table, unicast, and an address global,
// unless they say otherwise.
func ParseState(files ...[]byte) (State, error) {
	var all stateFile
	for _, data := range files {
		var file stateFile
		if err := yaml.UnmarshalStrict(data, &file); err != nil {
			return State{}, fmt.Errorf("parse netlink state: %w", err)
		}
		all.Devices = append(all.Devices, file.Devices...)
		all.Addresses = append(all.Addresses, file.Addresses...)
		all.Routes = append(all.Routes, file.Routes...)
		all.Neighbours = append(all.Neighbours, file.Neighbours...)
		all.BridgeEntries = append(all.BridgeEntries, file.BridgeEntries...)
	}
	return all.state()
}

// state resolves names and fills in what may be left out.
func (f *stateFile) state() (State, error) {
	names := deviceNames{index: map[string]int{}}
	for _, d := range f.Devices {
		if d.Index <= 0 || d.Name == "" {
			return State{}, fmt.Errorf("parse netlink state: device %q with index %d: want both", d.Name, d.Index)
		}
		for _, name := range append(d.AltNames, d.Name) {
			names.index[name] = d.Index
		}
	}
	var state State
	for _, d := range f.Devices {
		row := d.Device
		row.Type = cmp.Or(row.Type, "device")
		row.MTU = cmp.Or(row.MTU, 1500)
		row.Up = valueOr(d.Up, true)
		row.OperUp = valueOr(d.OperUp, row.Up)
		row.PeerNetNSID = valueOr(d.PeerNetNSID, -1)
		names.resolve(d.Master, &row.MasterIndex)
		names.resolve(d.Parent, &row.ParentIndex)
		state.Devices = append(state.Devices, &row)
	}
	for _, a := range f.Addresses {
		row := a
		if !row.Addr.IsValid() {
			return State{}, fmt.Errorf("parse netlink state: address of device %q: no addr", row.Device)
		}
		row.Scope = cmp.Or(row.Scope, "global")
		if !row.Prefix.IsValid() {
			row.Prefix = netip.PrefixFrom(row.Addr, row.Addr.BitLen())
		}
		row.Prefix = row.Prefix.Masked()
		names.resolve(row.Device, &row.DeviceIndex)
		state.Addresses = append(state.Addresses, &row)
	}
	for _, r := range f.Routes {
		row := r.Route
		if !row.Destination.IsValid() {
			return State{}, fmt.Errorf("parse netlink state: route of device %q: no destination", r.Device)
		}
		row.Table = cmp.Or(row.Table, tables.RouteTableMain)
		row.Type = cmp.Or(row.Type, "unicast")
		row.Scope = cmp.Or(row.Scope, "global")
		row.Destination = row.Destination.Masked()
		names.resolve(r.Device, &row.DeviceIndex)
		state.Routes = append(state.Routes, &row)
	}
	for _, n := range f.Neighbours {
		row := n.Neighbour
		names.resolve(n.Device, &row.DeviceIndex)
		state.Neighbours = append(state.Neighbours, &row)
	}
	for _, e := range f.BridgeEntries {
		row := e.BridgeEntry
		names.resolve(e.Device, &row.DeviceIndex)
		names.resolve(e.Bridge, &row.BridgeIndex)
		state.BridgeEntries = append(state.BridgeEntries, &row)
	}
	if len(names.missing) > 0 {
		return State{}, fmt.Errorf("parse netlink state: no device %q", names.missing)
	}
	return state, nil
}

// stateFile is the YAML form of a [State].
type stateFile struct {
	Devices       []fileDevice         `json:"devices"`
	Addresses     []tables.NodeAddress `json:"addresses"`
	Routes        []fileRoute          `json:"routes"`
	Neighbours    []fileNeighbour      `json:"neighbours"`
	BridgeEntries []fileBridgeEntry    `json:"bridgeEntries"`
}

type fileDevice struct {
	tables.Device
	Up          *bool  `json:"up"`          // true if left out
	OperUp      *bool  `json:"operUp"`      // as up if left out
	PeerNetNSID *int   `json:"peerNetNSID"` // -1 if left out
	Master      string `json:"master"`
	Parent      string `json:"parent"`
}

type fileRoute struct {
	tables.Route
	Device string `json:"device"`
}

type fileNeighbour struct {
	tables.Neighbour
	Device string `json:"device"`
}

type fileBridgeEntry struct {
	tables.BridgeEntry
	Device string `json:"device"`
	Bridge string `json:"bridge"`
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// deviceNames maps names and alternative names to interface indexes, and
// remembers which were asked for in vain.
type deviceNames struct {
	index   map[string]int
	missing []string
}

func (n *deviceNames) resolve(name string, index *int) {
	if name == "" {
		return
	}
	i, found := n.index[name]
	if !found {
		n.missing = append(n.missing, name)
	}
	*index = i
}
