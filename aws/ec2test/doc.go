// Package ec2test is a test cloud that speaks the protocols of Amazon EC2 (the query
// protocol, API version 2016-11-15), of Elastic Load Balancing v2 (2015-12-01) and of
// ARC zonal shift (2022-10-30, restJson1) on one port, as far as starting, stopping,
// finding and ending machines goes. It has queues of Amazon SQS too (AWS JSON 1.0), into
// which EventBridge puts what happens to machines.
//
// It refuses what AWS refuses, with AWS's codes and HTTP statuses: unsigned and
// badly signed requests, unknown actions and parameters, actions that the
// caller's policy does not permit, values that AWS does not have. The rules
// come from the EC2 and ELBv2 API references and from AWS's published client
// models; where they are silent, the comment at the rule names its source.
// Clouds are safe for concurrent use.
package ec2test
