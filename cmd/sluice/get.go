// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
)

func newGetCommand() *cobra.Command {
	var server *string
	var out output
	var watch *bool
	cmd := &cobra.Command{
		Use:   "get TABLE",
		Short: "Show a table of the running agent",
		Long: `Show a table of the running agent: its rows in columns, or whole as JSON or YAML.
In columns, what is longer than 120 characters is cut, unless it is -o wide.
With --watch also each change from then on, until interrupted. The exit code is
then 0, and 3 if the agent goes away before.`,
		Example: `  sluice get endpoints
  sluice get egress-rules -o yaml
  sluice get health -w`,
		Args: atMostOneArg("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := untilInterrupted(cmd.Context())
			defer cancel()
			c, err := connect(ctx, *server)
			if err != nil {
				return err
			}
			defer c.close()
			if len(args) == 0 {
				return c.whichTable(ctx)
			}
			g := getter{client: c, table: url.PathEscape(args[0]), out: out, w: cmd.OutOrStdout()}
			if !*watch {
				return g.show(ctx)
			}
			if err := g.watch(ctx); ctx.Err() == nil {
				return err
			}
			return nil // interrupted, as intended
		},
		ValidArgsFunction: completeTable,
	}
	server = serverFlag(cmd.Flags())
	out = tableOutputFlag(cmd.Flags())
	watch = cmd.Flags().BoolP("watch", "w", false, "follow the changes, with deletions marked")
	return cmd
}

// whichTable returns the error for a command line that names no table.
func (c *client) whichTable(ctx context.Context) error {
	names, err := c.tableNames(ctx)
	if err != nil {
		return err
	}
	return agent.UsageErrorf("want the name of a table, one of: %s", strings.Join(names, ", "))
}

func (c *client) tableNames(ctx context.Context) ([]string, error) {
	var list []api.Table
	if err := c.getJSON(ctx, "/tables", &list); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range list {
		names = append(names, t.Name)
	}
	return names, nil
}

// getter prints one table.
type getter struct {
	*client
	table string
	out   output
	w     io.Writer
}

// cells asks for how the cells of a table are to look.
func (g getter) cells() url.Values {
	query := url.Values{}
	if n := g.out.longest(); n > 0 {
		query.Set("longest", strconv.Itoa(n))
	}
	if g.out.colored(g.w) {
		query.Set("color", "true")
	}
	return query
}

func (g getter) show(ctx context.Context) error {
	if !g.out.isData() {
		return g.copy(ctx, "/tables/"+g.table+"?"+g.cells().Encode())
	}
	var dump map[string]json.RawMessage
	if err := g.getJSON(ctx, "/statedb/dump/"+g.table, &dump); err != nil {
		return err
	}
	for _, rows := range dump {
		return g.out.printJSON(g.w, rows)
	}
	return errors.New("the agent's answer has no table")
}

// watch follows a table. It only returns with an error.
func (g getter) watch(ctx context.Context) error {
	if !g.out.isData() {
		query := g.cells()
		query.Set("watch", "true")
		body, err := g.get(ctx, "/tables/"+g.table+"?"+query.Encode())
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(g.w, body)
		return ended(err)
	}
	return g.stream(ctx, "/statedb/changes/"+g.table, g.printChange)
}

// printChange prints a change, unless it is none.
func (g getter) printChange(raw json.RawMessage) error {
	var change struct {
		Revision uint64 `json:"rev"`
	}
	if err := json.Unmarshal(raw, &change); err != nil {
		return fmt.Errorf("decode a change: %w", err)
	}
	if change.Revision == 0 {
		return nil // keeps the connection alive
	}
	return g.out.printNext(g.w, raw)
}

func (g getter) copy(ctx context.Context, path string) error {
	body, err := g.get(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(g.w, body); err != nil {
		return fmt.Errorf("read the agent's answer: %w", cause(err))
	}
	return nil
}
