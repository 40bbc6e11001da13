// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/explain"
)

const (
	completionTime = 2 * time.Second // for the agent to answer who presses a key
	mostCompleted  = 100             // names that are offered
)

// completionExamples say how each shell gets its completion.
var completionExamples = map[string]string{
	"bash": `  source <(sluice completion bash)
  sluice completion bash >/etc/bash_completion.d/sluice`,
	"zsh": `  source <(sluice completion zsh)
  sluice completion zsh >"${fpath[1]}/_sluice"`,
	"fish": `  sluice completion fish | source
  sluice completion fish >~/.config/fish/completions/sluice.fish`,
}

// addCompletion adds the command completion, for the shells that nodes have, and
// what flags are completed with.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		replaced := group("completion", "Print what completes commands, flags and names in a shell", `Print a script that has a shell complete the commands and flags of sluice, and
the names of the running agent's tables, policies and pods.`)
		for _, shell := range cmd.Commands() {
			if example := completionExamples[shell.Name()]; example != "" {
				shell.Short, shell.Example, shell.Args = "Print the completion for "+shell.Name(), example, noArgs
				cmd.RemoveCommand(shell)
				replaced.AddCommand(shell)
			}
		}
		root.RemoveCommand(cmd)
		root.AddCommand(replaced)
	}
	completeFlags(root)
}

// completeFlags completes the values of flags: of one of a few words by these, of
// others by their name.
func completeFlags(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		complete := flagValues[f.Name]
		switch value := f.Value.(type) {
		case *agent.Enum:
			complete = words(value.Valid()...)
		case output:
			complete = words(value.Valid()...)
		}
		if complete != nil {
			cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails if there is one already
		}
	})
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

var flagValues = map[string]cobra.CompletionFunc{
	"pod":       completePods,
	"reason":    words(events.Reasons()...),
	"kind":      words("drop", "flow"),
	"protocol":  words("tcp", "udp", "icmp", "icmpv6", "sctp"),
	"direction": words(string(ctmap.DirectionOut), string(ctmap.DirectionIn)),
	"family":    words(api.FamilyIPv4, api.FamilyIPv6),
	"state":     words(states()...),
}

func states() (names []string) {
	for _, s := range ctmap.States() {
		names = append(names, string(s))
	}
	return names
}

// words completes by fixed words.
func words(all ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)
}

// asking completes by what ask gets from the agent, and by nothing if there is
// none: who presses a key wants no error.
func asking(cmd *cobra.Command, ask func(context.Context, *client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	server := ""
	if f := cmd.Flags().Lookup("server"); f != nil {
		server = f.Value.String()
	}
	c, err := connect(ctx, server)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.close()
	names, err := ask(ctx, c)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTable completes the name of a table.
func completeTable(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return asking(cmd, func(ctx context.Context, c *client) ([]string, error) { return c.tableNames(ctx) })
}

// completePods completes namespace/name of a pod.
func completePods(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return asking(cmd, func(ctx context.Context, c *client) ([]string, error) { return c.podsFrom(ctx, begun) })
}

// completePeers completes what a question about packets is asked with: a pod, or
// an entity.
func completePeers(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, directive := completePods(cmd, args, begun)
		for _, entity := range explain.Entities() {
			if strings.HasPrefix(entity, begun) {
				names = append(names, entity)
			}
		}
		return names, directive
	}
}

// podsFrom returns the names of pods that begin with a text. Only these are read.
func (c *client) podsFrom(ctx context.Context, begun string) (names []string, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the answer, which may go on to the last pod
	defer cancel()
	body, err := c.query(ctx, statedb.QueryRequest{Table: "endpoints", Index: "name", LowerBound: true}, []byte(begun))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	for dec := json.NewDecoder(body); dec.More() && len(names) < mostCompleted; {
		var row struct{ Obj tables.Name }
		if err := dec.Decode(&row); err != nil {
			return names, fmt.Errorf("decode the agent's answer: %w", err)
		}
		if !strings.HasPrefix(row.Obj.String(), begun) {
			break
		}
		names = append(names, row.Obj.String())
	}
	return names, nil
}

// completePolicies completes the name of a network policy.
func completePolicies(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return asking(cmd, func(ctx context.Context, c *client) (names []string, err error) {
		var dump map[string][]struct{ Policy tables.PolicyID }
		if err := c.getJSON(ctx, "/statedb/dump/network-policy-status", &dump); err != nil {
			return nil, err
		}
		for _, rows := range dump {
			for _, row := range rows {
				id := row.Policy.String()
				if row.Policy.Namespace != "" && !strings.HasPrefix(id, begun) {
					id = row.Policy.Name.String()
				}
				if strings.HasPrefix(id, begun) && len(names) < mostCompleted {
					names = append(names, id)
				}
			}
		}
		return names, nil
	})
}
