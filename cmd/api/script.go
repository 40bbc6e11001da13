// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
)

func scriptCommands(s *Server) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"http/get": getCommand(s),
		"explain":  explainCommand(s),
	})
}

func getCommand(s *Server) script.Cmd {
	return script.Command(
		script.CmdUsage{
			Summary: "Show what the HTTP API answers: status and body",
			Args:    "path",
		},
		func(state *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			req, err := http.NewRequestWithContext(state.Context(), http.MethodGet, args[0], nil)
			if err != nil {
				return nil, err
			}
			return func(*script.State) (stdout, stderr string, err error) {
				answer := recorder{header: http.Header{}, status: http.StatusOK}
				s.handlers.mux(true).ServeHTTP(&answer, req)
				return fmt.Sprintf("%d %s\n%s", answer.status, http.StatusText(answer.status), answer.body.String()), "", nil
			}, nil
		},
	)
}

func explainCommand(s *Server) script.Cmd {
	return script.Command(
		script.CmdUsage{
			Summary: "Say what policies make of a packet; fail if the maps make something else of it",
			Args:    "policy|egress from to [port[/protocol]]",
		},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			lines, differ, err := s.handlers.explainLines(args)
			if err != nil {
				return nil, err
			}
			return func(*script.State) (stdout, stderr string, err error) {
				if differ {
					err = errors.New("the maps differ from the tables")
				}
				return strings.Join(lines, "\n") + "\n", "", err
			}, nil
		},
	)
}

func (h *handlers) explainLines(args []string) (lines []string, differ bool, err error) {
	switch {
	case h.explain == nil:
		return nil, false, errors.New("this agent has nothing to explain")
	case len(args) == 4 && args[0] == "policy":
		answer, err := h.explain.Policy(args[1], args[2], args[3], "")
		if err != nil {
			return nil, false, err
		}
		return answer.Lines(), len(answer.AllDifferences()) > 0, nil
	case len(args) == 3 && args[0] == "egress":
		answer, err := h.explain.Egress(args[1], args[2])
		if err != nil {
			return nil, false, err
		}
		return answer.Lines(), len(answer.Differences) > 0, nil
	}
	return nil, false, script.ErrUsage
}

// recorder keeps a response in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
