// Command failures lists what each failed test printed, from the output of go test -json, in
// short: its own lines without what it dumped of logs. A build server
// that keeps only the end of a long output then keeps the reasons.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
)

// event is one line of `go test -json`.
type event struct {
	Action  string `json:"Action"`
	Package string `json:"Package"`
	Test    string `json:"Test"`
	Output  string `json:"Output"`
}

const (
	mostLines = 40  // of one test
	mostText  = 400 // of one line
	follow    = 6   // lines that a message of several lines may have
)

// message is the first line of what a test prints of itself.
var message = regexp.MustCompile(`^\s+[\w-]+_test\.go:\d+: |^panic: |WARNING: DATA RACE|^--- FAIL`)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("cannot read what the tests printed", "err", err)
	}
}

// report prints the messages of failed tests. A test with a failed subtest has
// failed too.
func report(r io.Reader, w io.Writer) error {
	lines := map[string][]string{}
	since := map[string]int{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			continue // what a build printed
		}
		name := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			if message.MatchString(e.Output) {
				since[name] = 0
			}
			if since[name]++; since[name] <= follow && strings.TrimSpace(e.Output) != "" {
				lines[name] = append(lines[name], cut(strings.TrimRight(e.Output, "\n")))
			}
		case "fail":
			if e.Test == "" {
				continue
			}
			of := lines[name]
			fmt.Fprintf(w, "\n=== %s, in short\n%s\n", name, strings.Join(of[max(0, len(of)-mostLines):], "\n"))
		case "pass", "skip":
			delete(lines, name)
		}
	}
}

func cut(s string) string {
	if len(s) > mostText {
		return s[:mostText] + " ..."
	}
	return s
}
