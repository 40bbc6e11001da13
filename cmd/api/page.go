// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// files are the page that browsers are shown, as it is: nothing builds it, and it
// loads nothing from elsewhere.
//
//go:embed web
var files embed.FS

// contentTypes of the files; the machine may know others, or none.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// pageHeaders keep the page to itself: it runs and loads what this agent serves,
// sends nothing elsewhere, and is shown in no other page.
var pageHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options": "nosniff",
	"Referrer-Policy":        "no-referrer",
	"Cache-Control":          "no-cache", // ask whether it is the same, by the ETag
}

// etags of the files by name, made when the first is asked for.
var etags = sync.OnceValue(func() map[string]string {
	tags := map[string]string{}
	entries, _ := files.ReadDir("web") // embedded: it is there
	for _, e := range entries {
		data, _ := files.ReadFile("web/" + e.Name())
		sum := sha256.Sum256(data)
		tags[e.Name()] = `"` + hex.EncodeToString(sum[:8]) + `"`
	}
	return tags
})

// wantsPage reports whether a client names HTML among what it takes, as browsers do
// and others, which take anything, do not.
func wantsPage(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for item := range strings.SplitSeq(accept, ",") {
			kind, params, err := mime.ParseMediaType(item)
			if err == nil && kind == "text/html" && params["q"] != "0" {
				return true
			}
		}
	}
	return false
}

func servePageFile(w http.ResponseWriter, r *http.Request) { servePage(w, r, r.PathValue("file")) }

// servePage serves a file of the page.
func servePage(w http.ResponseWriter, r *http.Request, name string) {
	etag, found := etags()[name]
	if !found {
		writeError(w, http.StatusNotFound, "the page has no file %q", name)
		return
	}
	data, _ := files.ReadFile("web/" + name)
	for header, value := range pageHeaders {
		w.Header().Set(header, value)
	}
	w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
	w.Header().Set("ETag", etag)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}
