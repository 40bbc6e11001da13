// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/cmd/api"
)

func newCTGCCommand() *cobra.Command {
	c := &collect{}
	var allExpired bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove connections that have ended, now",
		Long: `Remove connections that have ended, with their translations, and translations
without connection, as the agent does now and then by itself; show what was done
to each map. Kept are UDP connections that have expired less than a minute ago,
as late replies may come; Revived, those that were used at that very moment.
LongestRun is for how long the kernel was busy with it at a stretch.

The running agent does it, and has the passes in its table ct-gc-runs. Without
one this command does it.`,
		Example: `  sluice ct gc
  sluice ct gc --all-expired -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &api.GCRequest{Reason: "sluice ct gc", Expired: true, Orphans: true}
			if allExpired {
				request.ReplyGraceSeconds = new(uint32)
			}
			passes, err := c.do(cmd, request)
			if err != nil {
				return err
			}
			if c.out.isData() {
				return printRecords(c.out, cmd.OutOrStdout(), passes)
			}
			return c.out.printRows(cmd.OutOrStdout(), passRows(passes))
		},
	}
	c.add(cmd.Flags())
	c.out = tableOutputFlag(cmd.Flags())
	cmd.Flags().BoolVar(&allExpired, "all-expired", false, "also UDP connections that have expired less than a minute ago")
	return cmd
}

// collect has connections removed.
type collect struct {
	bpffs, server *string
	out           output
}

func (c *collect) add(flags *pflag.FlagSet) {
	c.bpffs = bpffsFlag(flags)
	c.server = serverFlag(flags)
}

// do has the agent do what is asked for. If none answers it does it itself, unless
// a certain agent was to do it.
func (c *collect) do(cmd *cobra.Command, request *api.GCRequest) ([]gc.Pass, error) {
	ctx, cancel := untilInterrupted(cmd.Context())
	defer cancel()
	running, err := connect(ctx, *c.server)
	if err == nil {
		defer running.close()
		if request.BPFFS, err = chosenBPFFS(cmd.Flags()); err != nil {
			return nil, err
		}
		var answer api.GCAnswer
		err = running.postJSON(ctx, "/gc", request, &answer)
		return answer.Passes, err
	}
	if chosenServer(*c.server) != "" || !errors.Is(err, errNoAgent) {
		return nil, err
	}
	return collectAlone(ctx, *c.bpffs, request, cmd.ErrOrStderr())
}

// collectAlone works on the pinned maps in place of an agent.
func collectAlone(ctx context.Context, bpffs string, request *api.GCRequest, stderr io.Writer) ([]gc.Pass, error) {
	lock, err := bpf.LockPins(bpffs)
	if errors.Is(err, bpf.ErrInUse) {
		return nil, fmt.Errorf("%w, but none answers: wait if it starts or stops, else name its socket by --server, or restart it", err)
	} else if err != nil {
		return nil, mapsError(err)
	}
	defer lock.Close()
	pinned, err := openPinned(bpffs)
	if err != nil {
		return nil, err
	}
	defer pinned.close()
	fmt.Fprintln(stderr, "sluice: no agent answers: this command works on the maps itself")
	var all []gc.Pass
	for _, s := range pinned.sets {
		passes, err := s.collect(ctx, request)
		all = append(all, passes...)
		if err != nil {
			return all, mapsError(err)
		}
	}
	return all, nil
}

func (s mapSet) collect(ctx context.Context, request *api.GCRequest) ([]gc.Pass, error) {
	collector, err := gc.Open(s.maps())
	if err != nil {
		return nil, err
	}
	defer collector.Close()
	passes, err := request.Do(ctx, alone{collector})
	for i := range passes {
		passes[i].Map = s.name(passes[i].Map)
	}
	return passes, err
}

// alone is an [api.Collector] without an agent.
type alone struct{ *gc.Collector }

func (a alone) Run(ctx context.Context, f gc.Filter, _ string) ([]gc.Pass, error) {
	return a.Collector.Run(ctx, f)
}

func (a alone) Flush(ctx context.Context, chosen func(gc.Entry) bool, _ string) ([]gc.Pass, error) {
	return a.Collector.Flush(ctx, chosen, nil)
}

func passRows(passes []gc.Pass) [][]string {
	rows := [][]string{{
		"Map", "Method", "Scanned", "Expired", "Translations", "Orphans", "Kept", "Revived", "Deferred", "Failed", "Duration", "LongestRun",
	}}
	for _, p := range passes {
		row := []string{p.Map, cmp.Or(string(p.Method), "-")}
		for _, n := range []uint64{p.Scanned, p.Expired + p.Condemned, p.Translations, p.Orphans, p.Kept, p.Revived, p.Deferred, p.Failed} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		rows = append(rows, append(row, round(p.Duration), round(p.LongestRun)))
	}
	return rows
}

// round returns a duration to three digits.
func round(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	last := time.Nanosecond // what the third digit counts
	for d/last >= 1000 {
		last *= 10
	}
	return d.Round(last).String()
}
