// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/tables"
)

// waitInterval is how often it is looked whether what is waited for has happened.
const waitInterval = 50 * time.Millisecond

// searchInterval is the same where that means to go through all policies.
const searchInterval = 500 * time.Millisecond

func newWaitCommand() *cobra.Command {
	cmd := group(
		"wait", "Wait until something is in force on this node",
		"Wait until something is in force on this node, or the time is up.",
	)
	cmd.AddCommand(newWaitPolicyCommand())
	return cmd
}

func newWaitPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy [[KIND/]NAMESPACE/]NAME",
		Short: "Wait until a network policy is in force on this node",
		Long: `Wait until a network policy is in force on this node: until the kernel has all
that the policy says now, and nothing more of what it said before. Without KIND, or
NAMESPACE, it is any of that name; if there are several, all of them. A policy that selects
no pod of this node is in force here as soon as it is known. The exit code is 1 if
the time is up, and if a part of the policy is invalid or unsupported; the rest of it
is in force then. It is 1, too, if the policy is too large: the pods that it selects
are isolated instead.

A policy that was just applied may not have reached the agent yet: give the
generation that the API server has told, and the agent is waited for.`,
		Example: `  sluice wait policy shop/web
  sluice wait policy NetworkPolicy/shop/web --timeout 5s
  sluice wait policy shop/web --generation $(kubectl get -n shop netpol web -o jsonpath='{.metadata.generation}')`,
		Args:              args("[[KIND/]NAMESPACE/]NAME"),
		ValidArgsFunction: completePolicies,
	}
	server := serverFlag(cmd.Flags())
	timeout := cmd.Flags().Duration("timeout", 30*time.Second, "for how long to wait")
	generation := cmd.Flags().Int64("generation", 0, "of the object to wait for, or a later one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *timeout <= 0 {
			return agent.UsageErrorf("--timeout: want more than 0")
		}
		ids, err := policiesOf(args[0])
		if err != nil {
			return agent.UsageErrorf("%w", err)
		}
		ctx, cancel := untilInterrupted(cmd.Context())
		defer cancel()
		c, err := connect(ctx, *server)
		if err != nil {
			return err
		}
		defer c.close()
		w := policyWait{
			client: c, name: args[0], ids: ids, interval: waitInterval, generation: *generation,
			w: cmd.OutOrStdout(),
		}
		if len(ids) == 0 {
			w.interval = searchInterval
		}
		return w.run(ctx, *timeout)
	}
	return cmd
}

var (
	namespacedKinds  = []tables.PolicyKind{tables.PolicyKubernetes, tables.PolicyCilium}
	clusterwideKinds = []tables.PolicyKind{tables.PolicyCiliumClusterwide}
)

// policiesOf returns the policies that may be meant, none for those of any
// namespace that have a name.
func policiesOf(text string) (ids []tables.PolicyID, err error) {
	parts := strings.Split(text, "/")
	for _, part := range parts {
		if part == "" {
			return nil, fmt.Errorf("%q is no name of a policy: want [[KIND/]NAMESPACE/]NAME", text)
		}
	}
	kind, _ := tables.ParsePolicyKind(parts[0]) // or it is a namespace, or the name
	switch {
	case len(parts) == 1:
	case len(parts) == 2 && slices.Contains(clusterwideKinds, kind):
		ids = append(ids, tables.PolicyID{Kind: kind, Name: tables.Name{Name: parts[1]}})
	case len(parts) == 2:
		for _, k := range namespacedKinds {
			ids = append(
				ids, tables.PolicyID{Kind: k, Name: tables.Name{Namespace: parts[0], Name: parts[1]}},
			)
		}
	case len(parts) == 3 && slices.Contains(namespacedKinds, kind):
		ids = append(
			ids, tables.PolicyID{Kind: kind, Name: tables.Name{Namespace: parts[1], Name: parts[2]}},
		)
	default:
		return nil, fmt.Errorf("%q is no name of a policy: want [[KIND/]NAMESPACE/]NAME, where KIND is one of %v", text,
			slices.Concat(namespacedKinds, clusterwideKinds))
	}
	return ids, nil
}

// beingTakenIn is how a policy stands that network-policy-status has yet to see.
const beingTakenIn = "is being taken in"

// policyWait waits for a policy, or for all that have its name.
type policyWait struct {
	*client
	name       string
	ids        []tables.PolicyID // none: all that have the name
	interval   time.Duration     // from one look to the next
	generation int64
	w          io.Writer
}

func (p policyWait) run(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := "the agent has not answered"
	for {
		done, text, err := p.look(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return err
		case done:
			_, err := fmt.Fprintln(p.w, text)
			return err
		default:
			last = text
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf(
					"policy %s is not in force after %s: %s; sluice get network-policies shows all", p.name,
					timeout, last,
				)
			}
			return ctx.Err()
		case <-time.After(p.interval):
		}
	}
}

// look reports whether it is done, and how it stands. What will not get better
// by waiting is an error.
func (p policyWait) look(ctx context.Context) (done bool, text string, err error) {
	var texts, wrong, tooLarge []string
	ids := p.ids
	if len(ids) == 0 {
		if ids, err = p.named(ctx); err != nil {
			return false, "", err
		}
	}
	done = true
	for _, id := range ids {
		status, err := query[tables.NetworkPolicyStatus](
			ctx, p.client, "network-policy-status", "policy", id,
		)
		if err != nil {
			return false, "", err
		}
		settled, text := p.progress(status)
		if settled || status == nil { // else it need not be asked for: it may be large
			policy, err := query[tables.NetworkPolicy](ctx, p.client, "network-policies", "id", id)
			if err != nil {
				return false, "", err
			}
			if policy == nil {
				continue
			}
			if settled && policy.revision != status.obj.Wanted {
				settled, text = false, beingTakenIn
			}
		}
		texts = append(texts, id.String()+": "+text)
		done = done && settled
		switch {
		case !settled:
		case status.obj.State == tables.PolicyTooLarge:
			tooLarge = append(tooLarge, text)
		case len(status.obj.Errors)+len(status.obj.Unsupported) > 0:
			wrong = append(wrong, text)
		}
	}
	switch {
	case len(texts) == 0:
		return false, p.noSuchPolicy(), nil
	case done && len(tooLarge) > 0:
		return false, "", fmt.Errorf(
			"policy %s isolates pods instead: %s", p.name, strings.Join(tooLarge, "; "),
		)
	case done && len(wrong) > 0:
		return false, "", fmt.Errorf(
			"policy %s is in force in part: %s", p.name, strings.Join(wrong, "; "),
		)
	}
	return done, strings.Join(texts, "; "), nil
}

// noSuchPolicy says that the agent does not find a policy. One of another version may
// have other index keys.
func (p policyWait) noSuchPolicy() string {
	if other := p.otherVersion(); other != "" {
		return "the agent finds no such policy; " + other
	}
	return "there is no such policy"
}

// named returns all policies of the name, whatever their kind and namespace.
func (p policyWait) named(ctx context.Context) (ids []tables.PolicyID, err error) {
	var dump map[string][]struct {
		Kind tables.PolicyKind `json:"kind"`
		tables.Name
	}
	if err := p.getJSON(ctx, "/statedb/dump/network-policies", &dump); err != nil {
		return nil, cause(err)
	}
	for _, rows := range dump {
		for _, row := range rows {
			if row.Name.Name == p.name {
				ids = append(ids, tables.PolicyID{Kind: row.Kind, Name: row.Name})
			}
		}
	}
	return ids, nil
}

// progress reports whether the kernel has what a policy says, of the generation that is
// waited for, or will not have it as that is too large.
func (p policyWait) progress(
	status *remote[tables.NetworkPolicyStatus],
) (settled bool, text string) {
	if status == nil {
		return false, beingTakenIn
	}
	s := &status.obj
	if s.Generation < p.generation {
		return false, fmt.Sprintf("the agent has generation %d", s.Generation)
	}
	text = fmt.Sprintf("%s, %d of %d label sets", s.State, s.Programmed, s.EntriesWanted)
	if s.Failed > 0 {
		text += fmt.Sprintf(", %d refused", s.Failed)
	}
	for _, reason := range slices.Concat([]string{s.TooLarge, s.Refused}, s.Errors, s.Unsupported) {
		if reason != "" {
			text += ", " + reason
		}
	}
	return s.Applied || s.State == tables.PolicyTooLarge, text
}

// remote is a row of the agent.
type remote[Row any] struct {
	obj      Row
	revision statedb.Revision
}

// query returns the row with a key of a unique index, nil if there is none.
func query[Row any](
	ctx context.Context, c *client, table, index string, id tables.PolicyID,
) (*remote[Row], error) {
	body, err := c.query(ctx, statedb.QueryRequest{Table: table, Index: index}, id.Key())
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var answer struct {
		Rev uint64 `json:"rev"`
		Obj Row    `json:"obj"`
		Err string `json:"err"`
	}
	switch err := json.NewDecoder(body).Decode(&answer); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("decode the agent's answer: %w", err)
	case answer.Err != "":
		return nil, errors.New(answer.Err)
	}
	return &remote[Row]{answer.Obj, answer.Rev}, nil
}
