// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpnetwork "github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// browser is a Chromium without a screen that looks at the page of an agent, by way
// of a proxy that can put something else in the place of an answer.
type browser struct {
	agent *agent
	t     testing.TB
	ctx   context.Context
	url   string

	mu       sync.Mutex
	answers  map[string]string // in the place of the agent's, by path
	problems []string          // errors of the console, exceptions, requests that are not to the agent
	offline  bool              // failed requests are no problem
}

// startBrowser starts a browser, or skips the test where there is none.
func startBrowser(t *testing.T, a *agent) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("needs a browser, which make browser installs: %v", err)
	default:
		t.Skipf("needs a browser, which make browser installs: %v", err)
	}
	b := &browser{agent: a, t: t, answers: map[string]string{}}
	b.url = b.serve()
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), // the test's is done before its cleanup
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.WSURLReadTimeout(timeout),
	)
	t.Cleanup(cancel)
	b.ctx, cancel = chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(b.ctx); err != nil { // waits until it is gone, which cancel does not
			t.Logf("stop the browser: %v", err)
		}
		cancel()
	})
	chromedp.ListenTarget(b.ctx, b.observe)
	// Without a timeout: what ends the context of the first actions ends the browser.
	require.NoError(t, chromedp.Run(b.ctx, cdpnetwork.Enable(), cdplog.Enable(), cdpruntime.Enable(),
		emulation.SetFocusEmulationEnabled(true), chromedp.EmulateViewport(1400, 900)))
	return b
}

// serve serves what the agent answers on its socket, or what is in its place; below
// another path, as the proxies of the API server and of ingresses do.
func (b *browser) serve() string {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "agent"}) },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", b.agent.socket())
		}},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // of streams that end with the agent
		// as if nothing listened
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	const below = "/nodes/" + localNode
	server := httptest.NewServer(http.StripPrefix(below, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		answer, found := b.answers[r.URL.Path]
		b.mu.Unlock()
		if !found {
			proxy.ServeHTTP(w, r)
			return
		}
		fmt.Fprint(w, answer)
		if strings.HasPrefix(r.URL.Path, "/statedb/changes/") {
			http.NewResponseController(w).Flush()
			<-r.Context().Done() // as a stream without changes
		}
	})))
	b.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		proxy.Transport.(*http.Transport).CloseIdleConnections()
	})
	return server.URL + below
}

func (b *browser) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *cdpnetwork.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.url+"/") && e.Request.URL != "about:blank" {
			b.problems = append(b.problems, "request to "+e.Request.URL)
		}
	case *cdpruntime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+e.ExceptionDetails.Error())
	case *cdpruntime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprintf("console %s: %v", e.Type, e.Args))
	case *cdplog.EventEntryAdded:
		if !b.offline || e.Entry.Source != cdplog.SourceNetwork {
			b.problems = append(b.problems, fmt.Sprintf("%s of %s: %s %s", e.Entry.Level, e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	}
}

// requireNoProblems checks that the browser has had nothing to complain about.
func (b *browser) requireNoProblems() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.problems)
}

// replace has a path answered with a text.
func (b *browser) replace(path, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[path] = text
}

// restore has paths answered by the agent again.
func (b *browser) restore(paths ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, path := range paths {
		delete(b.answers, path)
	}
}

// within is the same browser for a part of the test.
func (b *browser) within(t testing.TB) *inBrowser {
	return &inBrowser{browser: b, agent: b.agent.within(t), t: t}
}

// inBrowser is a part of a test.
type inBrowser struct {
	*browser
	*agent
	t testing.TB
}

func (b *inBrowser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, timeout)
	defer cancel()
	require.NoError(b.t, chromedp.Run(ctx, actions...))
}

// open goes to an address of the page, from outside of it.
func (b *inBrowser) open(hash string) {
	b.t.Helper()
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(b.url+"/"+hash))
}

// eval returns what an expression is in the page.
func eval[V any](b *inBrowser, expression string) (v V) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// await waits until an expression has a value in the page; until then it may fail.
func await[V comparable](b *inBrowser, want V, expression string) {
	b.t.Helper()
	b.eventually(expression, func() error {
		var got V
		ctx, cancel := context.WithTimeout(b.ctx, timeout)
		defer cancel()
		if err := chromedp.Run(ctx, chromedp.Evaluate(expression, &got)); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("it is %v, want %v", got, want)
		}
		return nil
	})
}
