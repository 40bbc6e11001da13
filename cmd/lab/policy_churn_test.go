// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// background is what goes on until it is ended, and how often it was done.
type background struct {
	stop    chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex // of what follows
	count int
	err   error
}

func startBackground(interval time.Duration, do ...func() error) *background {
	b := &background{stop: make(chan struct{})}
	for _, f := range do {
		b.running.Go(func() {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for {
				err := f()
				b.mu.Lock()
				b.count++
				b.err = errors.Join(b.err, err)
				b.mu.Unlock()
				if err != nil {
					return
				}
				select {
				case <-b.stop:
					return
				case <-ticker.C:
				}
			}
		})
	}
	return b
}

func (b *background) end(t *testing.T) int {
	t.Helper()
	close(b.stop)
	b.running.Wait()
	require.NoError(t, b.err)
	return b.count
}

func (b *background) done() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// startCalls connects again and again, which must always succeed.
func (p *policyTest) startCalls(lines ...string) *background {
	p.t.Helper()
	var do []func() error
	for _, text := range lines {
		c := p.callOf(text)
		do = append(do, func() error {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			defer cancel()
			if err := c.try(ctx); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			return nil
		})
	}
	return startBackground(20*time.Millisecond, do...)
}

// startChurn changes labels and policies.
func (p *policyTest) startChurn(decoys []*Pod) *background {
	random := rand.New(rand.NewPCG(8, 8))
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	find := func(name string) *Pod {
		for pod := range p.pods {
			if pod.Spec.Name == name {
				return pod
			}
		}
		return nil
	}
	relabel := func(pod *Pod, labels map[string]string) error {
		pod.Spec.Labels = labels
		return p.Apply(pod.Object())
	}
	client, near, other := find("client"), find("near"), find("other")
	changes := []func() error{
		func() error { return p.ApplyYAML(serverForms[random.IntN(len(serverForms))]) },
		func() error { return p.ApplyYAML(clientForms[random.IntN(len(clientForms))]) },
		func() error { return p.ApplyYAML(shopNamespace(pick("calm", "busy"))) },
		func() error {
			return relabel(client, map[string]string{"app": "client", "color": pick("red", "blue", "green"), "noise": pick("1", "2")})
		},
		func() error {
			return relabel(near, map[string]string{"app": "server", "color": pick("red", "blue"), "version": pick("1", "2")})
		},
		func() error { return relabel(other, map[string]string{"app": pick("other", "banned")}) },
		func() error {
			decoy := decoys[random.IntN(len(decoys))]
			return relabel(decoy, map[string]string{"app": pick("decoy", "client-2", "ghost"), "color": pick("red", "blue"), "noise": pick("1", "2", "3")})
		},
		func() error { // selects decoys only
			if random.IntN(2) == 0 {
				return p.Delete(parsed(p.t, decoyPolicy("", ""))...)
			}
			return p.ApplyYAML(decoyPolicy(pick("decoy", "client", "server"), pick("80", "443")))
		},
		func() error { // selects a server, to which it allows less than is allowed anyway
			if random.IntN(2) == 0 {
				return p.Delete(parsed(p.t, versionPolicy(""))...)
			}
			return p.ApplyYAML(versionPolicy(pick("80", "81")))
		},
	}
	return startBackground(25*time.Millisecond, func() error { return changes[random.IntN(len(changes))]() })
}

// shopNamespace is the namespace with a further label.
func shopNamespace(mood string) string {
	return `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: red, mood: ` + mood + `}}
`
}

func decoyPolicy(from, port string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: decoys, namespace: shop}
spec:
  podSelector: {matchLabels: {app: decoy}}
  ingress: [{from: [{podSelector: {matchLabels: {app: %q}}}], ports: [{port: %s}]}]
`, from, port)
}

func versionPolicy(port string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: version-1, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server, version: "1"}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: %s}]}]
`, port)
}
