// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/script"
	"github.com/cilium/hive/script/scripttest"
)

// The examples of the documentation of Kubernetes' and of Cilium's network
// policies, with the entries and the verdicts that must come of them. They were
// written down from the documentation, not from what the agent did.
func TestConformance(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	t.Cleanup(cancel) // after the scripts, which run in parallel
	scripttest.Test(t, ctx, newScriptEngine, nil, "../../testdata/conformance/*.txtar")
}

// verdict is a line of a table of verdicts.
type verdict struct{ from, to, traffic, want string }

// verdicts is the command that asks for each line of a file, by tables and by
// maps, what becomes of the traffic. They must agree, and with the line.
func (c *cluster) verdicts() script.Cmd {
	return script.Command(
		script.CmdUsage{Summary: "Compare the verdicts of policies with a table: From To Traffic Verdict", Args: "FILE"},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			want, err := readVerdicts(s.Path(args[0]))
			for _, v := range want {
				if e := c.explained(s, v); e != nil {
					err = errors.Join(err, fmt.Errorf("%s to %s, %s: %w", v.from, v.to, v.traffic, e))
				}
			}
			return nil, err
		})
}

func readVerdicts(path string) (out []verdict, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for first := true; lines.Scan(); first = false {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) != 4:
			return nil, fmt.Errorf("%q has not four columns", lines.Text())
		case first:
			if !slices.Equal(fields, []string{"From", "To", "Traffic", "Verdict"}) {
				return nil, fmt.Errorf("%q is no header of a table of verdicts", lines.Text())
			}
		case fields[3] != "allowed" && fields[3] != "denied":
			return nil, fmt.Errorf("%q is no verdict", fields[3])
		default:
			out = append(out, verdict{fields[0], fields[1], fields[2], fields[3]})
		}
	}
	if len(out) == 0 {
		return nil, errors.Join(lines.Err(), errors.New("no verdicts"))
	}
	return out, lines.Err()
}

// explained asks for one verdict.
func (c *cluster) explained(s *script.State, v verdict) error {
	wait, err := c.agent["explain"].Run(s, "policy", v.from, v.to, v.traffic)
	if err != nil {
		return err
	}
	stdout, stderr, err := wait(s)
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, stdout, stderr)
	}
	if first, _, _ := strings.Cut(stdout, "\n"); first != "verdict: "+v.want {
		return fmt.Errorf("want %s, got\n%s", v.want, stdout)
	}
	return nil
}
