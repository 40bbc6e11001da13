// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/sluice-net/sluice/bpf/gc"
)

func commands(r *Runner) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"ctgc/run": script.Command(
			script.CmdUsage{
				Summary: "Make a pass through the maps of connections",
				Args:    "[expired] [orphans] [all] [ADDRESS...]",
				Detail: []string{
					"Removes connections that have expired, translations without connection,",
					"everything, or what has one of some addresses. Without anything it only counts.",
				},
			},
			func(s *script.State, args ...string) (script.WaitFunc, error) {
				f, err := parseFilter(args)
				if err != nil {
					return nil, err
				}
				passes, err := r.Run(s.Context(), f, "script")
				if err != nil {
					return nil, err
				}
				var text strings.Builder
				for _, p := range passes {
					fmt.Fprintf(&text, "%s: %d scanned, %d removed\n", p.Map, p.Scanned, p.Removed())
				}
				return func(*script.State) (stdout, stderr string, err error) { return text.String(), "", nil }, nil
			},
		),
	})
}

func parseFilter(args []string) (f gc.Filter, err error) {
	for _, arg := range args {
		switch arg {
		case "expired":
			f.Expired = true
		case "orphans":
			f.Orphans = true
		case "all":
			f.All = true
		default:
			addr, err := netip.ParseAddr(arg)
			if err != nil {
				return f, fmt.Errorf("%q is none of expired, orphans, all, and no address", arg)
			}
			f.Addrs = append(f.Addrs, addr)
		}
	}
	return f, nil
}
