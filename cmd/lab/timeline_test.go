// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timeline is what some tables of agents have said, and when that came to the test.
type timeline struct {
	mu   sync.Mutex
	seen []moment
}

// moment is one change of a table.
type moment struct {
	at   time.Time
	node string
	text string
}

// follow adds the changes of a table of a node to the timeline until the test ends, each as the
// text of its row.
func follow[Row any](t *testing.T, line *timeline, n *Node, table string, text func(Row) string) {
	t.Helper()
	request, err := http.NewRequestWithContext(
		t.Context(), http.MethodGet, "http://agent/statedb/changes/"+table, nil)
	require.NoError(t, err)
	response, err := n.Agent.http.Do(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	go func() {
		defer close(ended)
		defer response.Body.Close()
		for changes := json.NewDecoder(response.Body); ; {
			var change struct {
				Object  *Row `json:"obj"` // none: nothing has changed for a while
				Deleted bool `json:"deleted,omitempty"`
			}
			if err := changes.Decode(&change); err != nil {
				if t.Context().Err() == nil {
					t.Errorf("table %s of %s: %v", table, n.Name, err)
				}
				return
			}
			if change.Object != nil && !change.Deleted {
				line.add(moment{time.Now(), n.Name, text(*change.Object)})
			}
		}
	}()
}

func (l *timeline) add(m moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, m)
}

// since returns the moments from a time on, each with the time since then, except those of some
// nodes.
func (l *timeline) since(begin time.Time, except ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text strings.Builder
	for _, m := range l.seen {
		if !m.at.Before(begin) && !slices.Contains(except, m.node) {
			fmt.Fprintf(&text, "\n%5d ms %s: %s", m.at.Sub(begin).Milliseconds(), m.node, m.text)
		}
	}
	return text.String()
}

// waited returns for how long the threads of a process have waited for a processor so far.
func waited(t *testing.T, pid int) (total time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		var ran, delay time.Duration
		if _, err := fmt.Sscan(string(text), &ran, &delay); err == nil {
			total += delay
		}
	}
	return total
}
