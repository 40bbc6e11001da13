// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/sluice-net/sluice/sources/objects"
)

// FakeCell is [Cell] with a [FakeAPI] in the place of the API server, and script
// commands to tell it what to do. If the hive has a FakeAPI, it is that one.
var FakeCell = cell.Module(
	"kubernetes",
	"Objects of a fake API server",

	cell.ProvidePrivate(func(p fakeParams) *fakeHandle {
		if p.API == nil {
			p.API = NewFakeAPI()
		}
		return &fakeHandle{p.API}
	}),
	cell.ProvidePrivate(func(h *fakeHandle) connector {
		return func([]*objects.Kind) (api, error) { return h.api, nil }
	}),
	cell.Provide(Config{}.agentNamespace),
	cell.Provide(func(h *fakeHandle) hive.ScriptCmdsOut { return hive.NewScriptCmds(h.api.Commands()) }),
	cell.Invoke(register),
)

type fakeParams struct {
	cell.In

	API *FakeAPI `optional:"true"`
}

// fakeHandle is the FakeAPI in use, under a type that nothing else provides.
type fakeHandle struct{ api *FakeAPI }

// Commands returns the script commands.
func (f *FakeAPI) Commands() map[string]script.Cmd {
	return map[string]script.Cmd{
		"k8s/apply":  manifestCommand("Create or replace the objects of manifests, those of each file at once", f.Apply),
		"k8s/delete": manifestCommand("Delete the objects of manifests, those of each file at once", f.Delete),
		"k8s/sync":   resourcesCommand("Let resources be listed, all if none is named", f.Sync),
		"k8s/slow":   resourcesCommand("Let no resources be listed until k8s/sync names them, all if none is named", f.Slow),
		"k8s/absent": resourceCommand("Delete the CRD of a resource with its objects, until k8s/sync names it", f.Absent),
		"k8s/break":  resourceCommand("Break the watches of a resource", f.Break),
		"k8s/resume": resourceCommand("Let a broken resource be listed and watched again", f.Resume),
	}
}

func manifestCommand(summary string, do func([]byte) error) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: "file..."},
		func(s *script.State, files ...string) (script.WaitFunc, error) {
			if len(files) == 0 {
				return nil, script.ErrUsage
			}
			for _, file := range files {
				data, err := os.ReadFile(s.Path(file))
				if err != nil {
					return nil, err
				}
				if err := do(data); err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
			}
			return nil, nil
		})
}

func resourcesCommand(summary string, do func(...string) error) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: "[resource...]"},
		func(_ *script.State, resources ...string) (script.WaitFunc, error) { return nil, do(resources...) })
}

func resourceCommand(summary string, do func(string) error) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: "resource"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			return nil, do(args[0])
		})
}
