package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const events = `what a build printed
{"Action":"output","Package":"p","Test":"TestGood","Output":"    good_test.go:1: fine\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:7: got 1\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"        want 2\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"LONG\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"log 4\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"log 5\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"log 6\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"log 7\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p"}
`
	var got strings.Builder
	if err := report(strings.NewReader(strings.Replace(events, "LONG", strings.Repeat("x", 1000), 1)), &got); err != nil {
		t.Fatal(err)
	}
	want := "\n=== p TestBad, in short\n=== RUN   TestBad\n    bad_test.go:7: got 1\n        want 2\n" +
		strings.Repeat("x", mostText) + " ...\nlog 4\nlog 5\nlog 6\n--- FAIL: TestBad (0.00s)\n"
	if got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}
