// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

// openPages says where each agent can be asked while the demo waits: by its socket, and by its page
// at an address of this machine, until the context ends.
func (d *demo) openPages(ctx context.Context) error {
	rows := [][]string{{"Agent", "Commands", "Page"}}
	for _, n := range d.Nodes {
		page, err := openPage(ctx, n.Agent.Socket())
		if err != nil {
			return fmt.Errorf("open the page of %s: %w", n.Name, err)
		}
		command := "sluice status --server=unix://" + n.Agent.Socket()
		rows = append(rows, []string{n.Name, command, page})
	}
	d.say("\nWhile it waits, look around:\n")
	d.table(rows)
	return nil
}

// openPage serves what an agent serves at its socket, at an address that only this machine
// reaches, and returns its URL.
func openPage(ctx context.Context, socket string) (url string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "localhost"
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var dialer net.Dialer
				return dialer.DialContext(ctx, "unix", socket)
			},
		},
		FlushInterval: -1, // pages follow changes
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet { // every user of this machine may ask, none may change
				http.Error(w, "look only: change by the socket", http.StatusMethodNotAllowed)
				return
			}
			proxy.ServeHTTP(w, r)
		}),
	}
	go func() { _ = server.Serve(listener) }() // it ends when the server is closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "http://" + listener.Addr().String() + "/", nil
}
