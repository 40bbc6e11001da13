// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/tables"
)

// command shows the health of all modules, or waits for a line of it that
// matches a pattern. Its lines have the form of hive's own health command.
func command(db *statedb.DB, table statedb.Table[*tables.Health]) script.Cmd {
	return script.Command(
		script.CmdUsage{
			Summary: "Show the health of the modules, or wait for a line of it to match",
			Args:    "(pattern)",
			Flags: func(fs *pflag.FlagSet) {
				fs.Duration("timeout", 5*time.Second, "How long to wait for a match")
			},
		},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			switch len(args) {
			case 0:
				return show(db, table), nil
			case 1:
				return waitFor(s, db, table, args[0])
			default:
				return nil, script.ErrUsage
			}
		},
	)
}

func show(db *statedb.DB, table statedb.Table[*tables.Health]) script.WaitFunc {
	return func(*script.State) (stdout, stderr string, err error) {
		var b strings.Builder
		for row := range table.All(db.ReadTxn()) {
			fmt.Fprintln(&b, line(row))
		}
		return b.String(), "", nil
	}
}

func line(h *tables.Health) string {
	return fmt.Sprintf("%s: level=%s message=%s error=%s", h.ID, h.Level, h.Message, h.Error)
}

// waitFor waits for lines that match, and shows them.
func waitFor(
	s *script.State, db *statedb.DB, table statedb.Table[*tables.Health], pattern string,
) (script.WaitFunc, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("parse pattern: %w", err)
	}
	timeout, err := s.Flags.GetDuration("timeout")
	if err != nil {
		return nil, err
	}
	expired := time.After(timeout)
	for {
		rows, changed := table.AllWatch(db.ReadTxn())
		var matches strings.Builder
		for row := range rows {
			if l := line(row); re.MatchString(l) {
				fmt.Fprintln(&matches, l)
			}
		}
		if matches.Len() > 0 {
			return func(*script.State) (stdout, stderr string, err error) { return matches.String(), "", nil }, nil
		}
		select {
		case <-changed:
		case <-expired:
			return nil, fmt.Errorf("no match for %q after %s", pattern, timeout)
		case <-s.Context().Done():
			return nil, s.Context().Err()
		}
	}
}
