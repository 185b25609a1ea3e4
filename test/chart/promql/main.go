// Command promql reads PromQL expressions from standard input, one a line. It fails unless
// Prometheus' own parser takes all of them, and prints the metrics that each reads. It is a
// module of its own: heddle does not depend on Prometheus.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run answers every line, and stops at the first that is invalid.
func run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		text, err := metrics(lines.Text())
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read expressions: %w", err)
	}
	return nil
}

// metrics are the names that an expression reads.
func metrics(expression string) (string, error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", expression, err)
	}
	var names []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			names = append(names, s.Name)
		}
		return nil
	})
	return strings.Join(names, " "), nil
}
