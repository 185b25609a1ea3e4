// Command promql reads PromQL expressions from standard input, one a line. Without
// arguments it fails unless Prometheus' own parser takes all of them, and prints for
// each the metrics that it reads. With -scrape FILE, a configuration of Prometheus
// with static targets, it scrapes these from its start on, and prints for each
// expression the result that Prometheus' engine has for it at that time, as JSON.
// It is a module of its own: heddle does not depend on Prometheus.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	file := flag.String("scrape", "", "configuration of Prometheus")
	flag.Parse()
	var err error
	if *file == "" {
		err = run(os.Stdin, os.Stdout, metrics)
	} else {
		err = serve(*file)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve scrapes until standard input ends.
func serve(file string) error {
	s, err := start(file, os.Stderr)
	if err != nil {
		return err
	}
	err = run(os.Stdin, os.Stdout, func(expression string) (string, error) {
		samples, err := s.query(context.Background(), expression)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(samples)
		return string(text), err
	})
	return errors.Join(err, s.stop())
}

// run answers every line, and stops at the first invalid expression.
func run(in io.Reader, out io.Writer, answer func(expression string) (string, error)) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		text, err := answer(lines.Text())
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
