// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
)

func scriptCommands(s *Server) hive.ScriptCmdOut {
	return hive.NewScriptCmd("http/get", script.Command(
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
	))
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
