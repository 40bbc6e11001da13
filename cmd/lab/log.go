// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// lockedWriter is for several writers.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// prefixWriter writes whole lines, each after a prefix, in one write.
type prefixWriter struct {
	w      io.Writer
	prefix string
	rest   []byte // of a line that has not ended
}

func (p *prefixWriter) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ended := bytes.Cut(p.rest, []byte("\n"))
		if !ended {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, line); err != nil {
			return 0, err
		}
		p.rest = rest
	}
}

// lastLine is the last line of the agent's log that does not go on from another.
func (a *Agent) lastLine() string {
	text, _ := os.ReadFile(a.LogPath()) // nothing to say if there is none
	last := ""
	for line := range strings.Lines(string(text)) {
		if strings.TrimLeft(line, " \t\n") == line {
			last = strings.TrimSpace(line)
		}
	}
	return last
}
