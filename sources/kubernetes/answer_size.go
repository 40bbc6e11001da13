// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// maxAnswer bounds the bytes of one answer that is not a watch, after decompression. It
	// holds the 500 objects of a page when they have 128 KiB each on average. The agent asks
	// for smaller pages when they have more.
	maxAnswer = 64 << 20

	// maxObject bounds the bytes of one event of a watch. API servers take objects of 3 MiB
	// at most, as does client-go's decoder of watches with this bound.
	maxObject = 16 << 20

	// maxSilence bounds how long an API server may send nothing of an answer that is not a watch,
	// and how late it may end a watch. It gives up on its own storage after a minute.
	maxSilence = 2 * time.Minute

	// pageSize is how many objects the agent first asks for when it reads in pages.
	pageSize = 500
)

// bounds are those of an answer that is not a watch, for tests to have others.
type bounds struct {
	bytes   int64
	silence time.Duration
}

var defaultBounds = bounds{maxAnswer, maxSilence}

// tooLargeError says that an answer, or an event of a watch, is longer than its bound.
type tooLargeError struct {
	what  string
	bound int64
}

func (e *tooLargeError) Error() string {
	return e.what + sizeText(e.bound)
}

func sizeText(bytes int64) string {
	if bytes >= 1<<20 {
		return strconv.FormatInt(bytes>>20, 10) + " MiB"
	}
	return strconv.FormatInt(bytes, 10) + " bytes"
}

// boundAnswers is a transport whose answers have a bound. A watch has no end, so that
// [boundFramer] bounds each of its events.
type boundAnswers struct {
	http.RoundTripper
	bounds
}

// RoundTrip implements [http.RoundTripper].
func (b boundAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	if watch, _ := strconv.ParseBool(req.URL.Query().Get("watch")); watch {
		return b.RoundTripper.RoundTrip(req)
	}
	resp, err := hangUpOnSilence(b.RoundTripper, req, b.silence)
	if err == nil {
		resp.Body = &boundReader{ReadCloser: resp.Body, left: b.bytes,
			err: tooLargeError{"the answer exceeds ", b.bytes}}
	}
	return resp, err
}

// boundReader fails after some bytes.
type boundReader struct {
	io.ReadCloser
	left int64
	err  tooLargeError
}

// Read implements [io.Reader].
func (r *boundReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.left -= int64(n); r.left < 0 {
		return 0, &r.err
	}
	return n, err
}

// boundFramer bounds the frames that a framer reads, of which each is an event of a watch.
// The framer of JSON has all of a frame in memory before it returns the first byte.
type boundFramer struct {
	runtime.Framer
	bound int64
}

// NewFrameReader implements [runtime.Framer].
func (f boundFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	from := &boundReader{ReadCloser: r, left: f.bound,
		err: tooLargeError{"an event exceeds ", f.bound}}
	return &frameReader{ReadCloser: f.Framer.NewFrameReader(from), from: from}
}

type frameReader struct {
	io.ReadCloser
	from *boundReader
}

// Read implements [io.Reader]. Without an error the frame is complete.
func (r *frameReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == nil {
		r.from.left = r.from.err.bound
	}
	return n, err
}
