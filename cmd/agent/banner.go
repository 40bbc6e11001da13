// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
)

// Banner says on w, once everything has started, what runs and where to look.
// It goes after all other cells, and is left out when logs are for machines.
func Banner(w io.Writer) cell.Cell {
	return cell.Invoke(func(p bannerParams, lc cell.Lifecycle) {
		if p.Log.LogFormat != formatText {
			return
		}
		lc.Append(cell.Hook{OnStart: func(cell.HookContext) error {
			io.WriteString(w, p.text()) // a closed terminal is no reason to stop
			return nil
		}})
	})
}

type bannerParams struct {
	cell.In

	Config   Config
	Log      LogConfig
	Settings cell.AllSettings
	Node     tables.LocalNode
	API      *api.Server
	Maps     *bpf.Maps `optional:"true"`
}

func (p bannerParams) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", version.Get())
	line := func(name, value string) { fmt.Fprintf(&b, "  %-8s %s\n", name, value) }
	line("node", p.Node.Name)
	if source, ok := p.Settings["source"].(string); ok {
		if dir, _ := p.Settings["manifests"].(string); source == "files" && dir != "" {
			source += " in " + dir
		}
		line("source", source)
	}
	if p.Maps != nil {
		line("maps", p.maps())
	}
	line("state", p.Config.StateDir)
	if url := p.API.URL(); url != "" {
		line("api", url)
	}
	if socket := p.API.Socket(); socket != "" {
		line("socket", socket)
	}
	b.WriteString("\nLook at it from another terminal, stop it with Ctrl-C:\n\n")
	for _, command := range p.examples() {
		fmt.Fprintf(&b, "  %s\n", command)
	}
	b.WriteString("\n")
	return b.String()
}

// maps says where the maps are.
func (p bannerParams) maps() string {
	backend := p.Maps.Backend()
	if backend == nil {
		return "none"
	}
	if _, ok := backend.(*bpf.Kernel); ok {
		return fmt.Sprintf("%s, pinned under %v/sluice", backend.Name(), p.Settings["bpffs"])
	}
	return backend.Name() + ": no packet is touched"
}

func (p bannerParams) examples() []string {
	command, server := os.Args[0], p.server()
	examples := []string{
		command + " tables" + server,
		command + " get endpoints" + server,
		command + " get health -w" + server,
	}
	if url := p.API.URL(); url != "" {
		examples = append(examples, "curl "+url+"/statedb/dump/endpoints")
	}
	return examples
}

// server returns the flag that other subcommands need to find this agent, ""
// if it is where they look anyway.
func (p bannerParams) server() string {
	socket, url := p.API.Socket(), p.API.URL()
	switch {
	case slices.Contains(Sockets(), socket), url == "http://"+api.DefaultConfig.APIListen:
		return ""
	case socket != "":
		return " --server=unix://" + socket
	default:
		return " --server=" + url
	}
}
