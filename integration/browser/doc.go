// Package browser tests the status page in Chromium. It is a module of its own, so that
// what drives the browser is nothing that users of the product download.
package browser
